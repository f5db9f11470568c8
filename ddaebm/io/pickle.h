#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <torch/types.h>

namespace ddaebm {

// A value of a Python pickle, as data: reading one calls nothing and imports nothing. Copies are
// cheap. Containers that the file shares are shared here too, so the values form a graph without
// cycles, 200 deep at most, which can have more paths than anyone can walk.
class PickleValue {
 public:
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,  // UTF-8
    kBytes,   // Python 2's str too
    kList,
    kTuple,
    kDict,    // collections.OrderedDict and defaultdict too; attributes such as _metadata left out
    kTensor,  // PyTorch's tensors, parameters and storages; NumPy's arrays
    kObject,
  };
  using List = std::vector<PickleValue>;
  using Dict = std::vector<std::pair<PickleValue, PickleValue>>;  // in the file's order
  struct Object;

  PickleValue() = default;
  explicit PickleValue(torch::Tensor tensor);

  Kind kind() const;
  bool is_none() const { return kind() == Kind::kNone; }

  // Nothing where the value is of another kind.
  std::optional<bool> boolean() const;
  std::optional<int64_t> integer() const;
  std::optional<double> number() const;          // an int or a float
  std::optional<std::string_view> text() const;  // a string or bytes
  const List* list() const;                      // a list or a tuple
  const Dict* dict() const;
  const torch::Tensor* tensor() const;
  const Object* object() const;
  const PickleValue* find(std::string_view key) const;  // a dict's value

 private:
  friend class Unpickler;
  struct Node;

  // Everything from kString on is a node.
  std::variant<std::monostate, bool, int64_t, double, std::shared_ptr<Node>> value_;
};

// An instance of a class that this reader does not know, or a class or function itself. An int
// beyond 64 bits is a "builtins.int" of its bytes, little endian.
struct PickleValue::Object {
  std::string name;   // "module.name", plain ASCII
  List args;          // of the constructor or function
  PickleValue state;  // what __setstate__ would get, most often the dict of attributes
  List items;         // appended or added
  Dict entries;       // set by key
};

struct Pickle {
  PickleValue value;
  // Classes and functions that the file names and that are neither interpreted nor harmless, each
  // once: what an attack, or a module missing here, would go by.
  std::vector<std::string> inert_globals;
};

// A file that is one pickle of protocol 0 to 5.
Pickle read_pickle(const std::filesystem::path& path);

// For formats made of pickles: reads the one that `bytes` starts with and drops it from there.
// `load` gives what a persistent id stands for; a tensor of one dimension is a storage, of which
// the pickle can ask for views. `where` starts errors.
using PersistentLoad = std::function<PickleValue(const PickleValue& id)>;
Pickle take_pickle(const std::string& where, std::string_view& bytes,
                   const PersistentLoad& load = nullptr);

}  // namespace ddaebm
