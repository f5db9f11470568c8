#include "ddaebm/io/pickle.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/io/bytes.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/npy.h"

// A pickle is a program for a machine with a stack, a stack of marks and a memo. Ours builds nodes:
// where Python would call, it interprets a few names that it knows, or makes an inert object.
namespace ddaebm {

struct PickleValue::Node {
  Kind kind;
  std::string text;  // kString, kBytes
  List items;        // kList, kTuple
  Dict entries;      // kDict
  torch::Tensor tensor;
  std::unique_ptr<Object> object;
  int depth = 0;  // of what hangs below, once it is known; kOpen while it is being looked at

  static constexpr int kOpen = -1;

  void forget_children() {
    items.clear();
    entries.clear();
    object.reset();
  }
};

PickleValue::PickleValue(torch::Tensor tensor) {
  auto node = std::make_shared<Node>();
  node->kind = Kind::kTensor;
  node->tensor = std::move(tensor);
  value_ = std::move(node);
}

PickleValue::Kind PickleValue::kind() const {
  if (const auto* node = std::get_if<std::shared_ptr<Node>>(&value_)) return (*node)->kind;
  constexpr Kind kinds[] = {Kind::kNone, Kind::kBool, Kind::kInt, Kind::kFloat};
  return kinds[value_.index()];
}

std::optional<bool> PickleValue::boolean() const {
  const auto* value = std::get_if<bool>(&value_);
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<int64_t> PickleValue::integer() const {
  const auto* value = std::get_if<int64_t>(&value_);
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<double> PickleValue::number() const {
  if (const auto* value = std::get_if<double>(&value_)) return *value;
  if (const auto whole = integer()) return static_cast<double>(*whole);
  return std::nullopt;
}

std::optional<std::string_view> PickleValue::text() const {
  if (kind() != Kind::kString && kind() != Kind::kBytes) return std::nullopt;
  return std::get<std::shared_ptr<Node>>(value_)->text;
}

const PickleValue::List* PickleValue::list() const {
  if (kind() != Kind::kList && kind() != Kind::kTuple) return nullptr;
  return &std::get<std::shared_ptr<Node>>(value_)->items;
}

const PickleValue::Dict* PickleValue::dict() const {
  return kind() == Kind::kDict ? &std::get<std::shared_ptr<Node>>(value_)->entries : nullptr;
}

const torch::Tensor* PickleValue::tensor() const {
  return kind() == Kind::kTensor ? &std::get<std::shared_ptr<Node>>(value_)->tensor : nullptr;
}

const PickleValue::Object* PickleValue::object() const {
  return kind() == Kind::kObject ? std::get<std::shared_ptr<Node>>(value_)->object.get() : nullptr;
}

const PickleValue* PickleValue::find(std::string_view key) const {
  if (dict() == nullptr) return nullptr;
  for (const auto& [name, value] : *dict()) {
    if (name.text() == key) return &value;
  }
  return nullptr;
}

namespace {

constexpr size_t kMaxValues = size_t{1} << 21;  // pushed, appended or remembered
constexpr int kMaxDepth = 200;
constexpr size_t kMaxName = 200;  // characters of a module or a class
constexpr int kMaxProtocol = 5;

// Known, and no more than data: not worth a word to the user.
bool is_harmless(std::string_view name) {
  static const std::set<std::string, std::less<>> names = {
      "_codecs.encode", "argparse.Namespace", "collections.OrderedDict", "collections.defaultdict",
      "copyreg._reconstructor", "numpy.dtype", "numpy.ndarray",
      // of the builtins
      "builtins.bytes", "builtins.dict", "builtins.frozenset", "builtins.int", "builtins.list",
      "builtins.object", "builtins.set",
      // of PyTorch
      "torch.Size", "torch.device", "torch._utils._rebuild_parameter",
      "torch._utils._rebuild_parameter_with_state", "torch._utils._rebuild_tensor",
      "torch._utils._rebuild_tensor_v2", "torch.bfloat16", "torch.bool", "torch.float16",
      "torch.float32", "torch.float64", "torch.int16", "torch.int32", "torch.int64", "torch.int8",
      "torch.uint8"};
  static const std::set<std::string, std::less<>> of_numpy = {
      "multiarray._reconstruct", "multiarray.scalar", "numeric._frombuffer"};
  for (const std::string_view module : {"numpy.core.", "numpy._core."}) {
    if (name.starts_with(module) && of_numpy.contains(name.substr(module.size()))) return true;
  }
  return names.contains(name) || (name.starts_with("torch.") && name.ends_with("Storage"));
}

void append_utf8(std::string& text, uint32_t code) {
  const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xc0 | code >> 6);
    add(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    add(0xe0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3f));
    add(0x80 | (code & 0x3f));
  } else {
    add(0xf0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3f));
    add(0x80 | (code >> 6 & 0x3f));
    add(0x80 | (code & 0x3f));
  }
}

// The bytes whose values are the text's characters; nothing where one is beyond 255.
std::optional<std::string> latin1(std::string_view utf8) {
  std::string bytes;
  bytes.reserve(utf8.size());
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto first = static_cast<unsigned char>(utf8[i]);
    if (first < 0x80) {
      bytes += utf8[i];
      continue;
    }
    if ((first != 0xc2 && first != 0xc3) || ++i == utf8.size()) return std::nullopt;
    const auto second = static_cast<unsigned char>(utf8[i]);
    if ((second & 0xc0) != 0x80) return std::nullopt;
    bytes += static_cast<char>((first & 0x03) << 6 | (second & 0x3f));
  }
  return bytes;
}

std::optional<uint32_t> hexadecimal(std::string_view digits) {
  uint32_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

// What Python 2's repr made of a string, without its quotes.
std::optional<std::string> unescaped(std::string_view text) {
  static const std::unordered_map<char, char> escapes = {{'\\', '\\'}, {'\'', '\''}, {'"', '"'},
                                                         {'n', '\n'},  {'r', '\r'},  {'t', '\t'}};
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      bytes += text[i];
      continue;
    }
    if (++i == text.size()) return std::nullopt;
    if (const auto escape = escapes.find(text[i]); escape != escapes.end()) {
      bytes += escape->second;
    } else {
      if (text[i] != 'x' || text.size() - i < 3) return std::nullopt;
      const auto code = hexadecimal(text.substr(i + 1, 2));
      if (!code) return std::nullopt;
      bytes += static_cast<char>(*code);
      i += 2;
    }
  }
  return bytes;
}

// Latin-1 with \uXXXX and \UXXXXXXXX.
std::optional<std::string> unescaped_unicode(std::string_view text) {
  std::string utf8;
  for (size_t i = 0; i < text.size(); ++i) {
    const char kind = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
    if (kind != 'u' && kind != 'U') {
      append_utf8(utf8, static_cast<unsigned char>(text[i]));
      continue;
    }
    const size_t digits = kind == 'u' ? 4 : 8;
    if (text.size() - i < 2 + digits) return std::nullopt;
    const auto code = hexadecimal(text.substr(i + 2, digits));
    if (!code || *code > 0x10ffff) return std::nullopt;
    append_utf8(utf8, *code);
    i += 1 + digits;
  }
  return utf8;
}

}  // namespace

class Unpickler {
 public:
  Unpickler(const std::string& where, std::string_view bytes, const PersistentLoad& load)
      : where_(where), bytes_(bytes), load_(load), copies_left_(4 * bytes.size() + 4096) {}

  // What hangs together must not be taken apart recursively before its depth is known.
  ~Unpickler() {
    for (const auto& node : nodes_) {
      if (node->depth <= 0) node->forget_children();
    }
  }
  Unpickler(const Unpickler&) = delete;
  Unpickler& operator=(const Unpickler&) = delete;

  Pickle run() {
    while (!stopped_) step();
    Pickle pickle;
    pickle.value = pop();
    measure(pickle.value);
    pickle.inert_globals.assign(inert_globals_.begin(), inert_globals_.end());
    return pickle;
  }

  size_t consumed() const { return at_; }

 private:
  using Kind = PickleValue::Kind;
  using Node = PickleValue::Node;
  using Object = PickleValue::Object;
  using List = PickleValue::List;
  using Dict = PickleValue::Dict;

  template <class... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: opcode {:#04x} at byte {} of the pickle: {}", where_, opcode_, opcode_at_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  // --- the stream

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) {
      bad("{} bytes wanted where {} remain; the file is cut short or damaged", count,
          bytes_.size() - at_);
    }
    const auto taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  template <class Length>
  std::string_view counted() {
    const auto length = number<Length>();
    if constexpr (std::is_signed_v<Length>) {
      if (length < 0) bad("a length of {}; the file is damaged", length);
    }
    return take(static_cast<uint64_t>(length));
  }

  std::string_view line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) bad("a line without an end; the file is cut short");
    const auto text = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return text;
  }

  template <class T>
  T decimal(std::string_view text) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      bad("found {}, expected a number of 64 bits", excerpt(text));
    }
    return value;
  }

  // --- values

  void count(size_t values) {
    if (values > kMaxValues - values_) {
      bad("more than {} values; no checkpoint or data batch has so many", kMaxValues);
    }
    values_ += values;
  }

  // A file can ask again and again for a copy of the same long bytes.
  void count_copy(uint64_t size) {
    if (size > copies_left_) bad("the arrays take more bytes than the file has; it is not sound");
    copies_left_ -= size;
  }

  PickleValue value_of(std::shared_ptr<Node> node) const {
    PickleValue value;
    value.value_ = std::move(node);
    return value;
  }

  Node* node_of(const PickleValue& value) const {
    const auto* node = std::get_if<std::shared_ptr<Node>>(&value.value_);
    return node ? node->get() : nullptr;
  }

  std::shared_ptr<Node> make(Kind kind) {
    nodes_.push_back(std::make_shared<Node>());
    nodes_.back()->kind = kind;
    return nodes_.back();
  }

  PickleValue make_text(Kind kind, std::string_view text) {
    const auto node = make(kind);
    node->text = text;
    return value_of(node);
  }

  PickleValue make_list(Kind kind, List items) {
    const auto node = make(kind);
    node->items = std::move(items);
    return value_of(node);
  }

  PickleValue make_object(std::string name, List args) {
    const auto node = make(Kind::kObject);
    node->object = std::make_unique<Object>();
    node->object->name = std::move(name);
    node->object->args = std::move(args);
    return value_of(node);
  }

  PickleValue make_tensor(torch::Tensor tensor) {
    const auto node = make(Kind::kTensor);
    node->tensor = std::move(tensor);
    return value_of(node);
  }

  template <class T>
  PickleValue make_scalar(T value) const {
    PickleValue made;
    made.value_ = value;
    return made;
  }

  // --- stack, marks, memo

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  void push(PickleValue value) {
    count(1);
    stack_.push_back(std::move(value));
  }

  PickleValue pop() {
    if (stack_.size() <= floor()) bad("the stack is empty; the file is damaged");
    PickleValue value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }

  const PickleValue& top() {
    if (stack_.size() <= floor()) bad("the stack is empty; the file is damaged");
    return stack_.back();
  }

  List pop_to_mark() {
    if (marks_.empty()) bad("no mark; the file is damaged");
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    List values(std::make_move_iterator(from), std::make_move_iterator(stack_.end()));
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return values;
  }

  List pop_last(size_t size) {
    List values(size);
    for (size_t i = size; i-- > 0;) values[i] = pop();
    return values;
  }

  void remember(uint64_t key) {
    count(1);
    memo_[key] = top();
  }

  void recall(uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) bad("memo {} was never set; the file is damaged", key);
    push(found->second);
  }

  // --- containers

  void add_items(const PickleValue& to, List added) {
    Node* node = node_of(to);
    List* items = nullptr;
    if (node != nullptr && node->kind == Kind::kList) items = &node->items;
    if (node != nullptr && node->kind == Kind::kObject) items = &node->object->items;
    if (items == nullptr) bad("appends to what is no list; the file is damaged");
    count(added.size());
    std::move(added.begin(), added.end(), std::back_inserter(*items));
  }

  // Keys and values alternate.
  void add_entries(const PickleValue& to, List added) {
    Node* node = node_of(to);
    Dict* entries = nullptr;
    if (node != nullptr && node->kind == Kind::kDict) entries = &node->entries;
    if (node != nullptr && node->kind == Kind::kObject) entries = &node->object->entries;
    if (entries == nullptr || added.size() % 2 != 0) {
      bad("sets keys of what is no dict, or a key without a value; the file is damaged");
    }
    count(added.size());
    for (size_t i = 0; i < added.size(); i += 2) {
      entries->emplace_back(std::move(added[i]), std::move(added[i + 1]));
    }
  }

  PickleValue make_dict(List alternating) {
    PickleValue dict = value_of(make(Kind::kDict));
    add_entries(dict, std::move(alternating));
    return dict;
  }

  // --- names

  void push_global(std::string_view module, std::string_view name) {
    const auto is_plain = [](std::string_view text) {
      return !text.empty() && text.size() <= kMaxName &&
             std::all_of(text.begin(), text.end(), [](char c) {
               return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                      c == '_' || c == '.' || c == '<' || c == '>' || c == '-';
             });
    };
    if (!is_plain(module) || !is_plain(name)) {
      bad("found {} of {}, expected the names of a class and its module", excerpt(name),
          excerpt(module));
    }
    if (module == "__builtin__") module = "builtins";  // Python 2's names
    if (module == "copy_reg") module = "copyreg";
    std::string full = fmt::format("{}.{}", module, name);
    if (!is_harmless(full)) {
      if (inert_globals_.insert(full).second) count(1);
    }
    push(make_object(std::move(full), {}));
  }

  // What a call would give. Nothing is called: known names are interpreted here, one by one.
  PickleValue call(const PickleValue& callee, List args) {
    const Object* what = callee.object();
    if (what == nullptr) bad("calls what is no class or function; the file is damaged");
    const std::string& name = what->name;
    const auto of_numpy = [&](std::string_view function) {
      return name.ends_with(function) && (name == fmt::format("numpy.core.{}", function) ||
                                          name == fmt::format("numpy._core.{}", function));
    };
    if (name == "collections.OrderedDict") return ordered_dict(args);
    if (name == "collections.defaultdict") return make_dict({});
    if (name == "torch._utils._rebuild_tensor_v2" || name == "torch._utils._rebuild_tensor") {
      return rebuild_tensor(args);
    }
    if (name == "torch._utils._rebuild_parameter" ||
        name == "torch._utils._rebuild_parameter_with_state") {
      if (args.empty() || args[0].tensor() == nullptr) bad("a parameter without a tensor");
      return args[0];
    }
    if (name == "torch.Size") {
      if (args.size() != 1 || args[0].list() == nullptr) bad("a torch.Size without sizes");
      count(args[0].list()->size());
      return make_list(Kind::kTuple, *args[0].list());
    }
    if (name == "_codecs.encode") return encode(args);
    if (name == "builtins.bytes" && args.empty()) return make_text(Kind::kBytes, "");
    if (name == "copyreg._reconstructor") {
      if (args.empty() || args[0].object() == nullptr) bad("an instance without a class");
      return make_object(args[0].object()->name, {});
    }
    if (of_numpy("multiarray._reconstruct")) return make_object("numpy.ndarray", {});
    if (of_numpy("multiarray.scalar")) return numpy_scalar(name, std::move(args));
    if (of_numpy("numeric._frombuffer")) {
      const bool sound = args.size() == 4 && args[2].list() != nullptr;
      const auto order = sound ? args[3].text() : std::nullopt;
      if (!order) bad("an array's bytes, type, shape and order are not what they should be");
      if (auto array = numpy_array(args[2], args[1], *order == "F", args[0])) {
        return make_tensor(std::move(*array));
      }
    }
    return make_object(name, std::move(args));
  }

  // OrderedDict(), or Python 2's OrderedDict([[key, value], ...]).
  PickleValue ordered_dict(const List& args) {
    List alternating;
    if (!args.empty()) {
      if (args.size() != 1 || args[0].list() == nullptr) bad("an OrderedDict of no list");
      count(args[0].list()->size());
      for (const PickleValue& pair : *args[0].list()) {
        if (pair.list() == nullptr || pair.list()->size() != 2) {
          bad("an OrderedDict of what are no pairs");
        }
        alternating.insert(alternating.end(), pair.list()->begin(), pair.list()->end());
      }
    }
    return make_dict(std::move(alternating));
  }

  PickleValue encode(const List& args) {
    const auto text = args.size() == 2 ? args[0].text() : std::nullopt;
    const auto encoding = args.size() == 2 ? args[1].text() : std::nullopt;
    if (!text || !encoding || (*encoding != "latin1" && *encoding != "latin-1")) {
      bad("bytes that are not encoded as latin1");
    }
    count_copy(text->size());
    const auto bytes = latin1(*text);
    if (!bytes) bad("text that is not latin1 where bytes should be");
    return make_text(Kind::kBytes, *bytes);
  }

  std::optional<std::vector<int64_t>> integers(const PickleValue& value) const {
    constexpr size_t kMoreThanAnyRank = 65;
    if (value.list() == nullptr || value.list()->size() >= kMoreThanAnyRank) return std::nullopt;
    std::vector<int64_t> numbers;
    for (const PickleValue& item : *value.list()) {
      if (!item.integer()) return std::nullopt;
      numbers.push_back(*item.integer());
    }
    return numbers;
  }

  // (storage, offset, sizes, strides, ...): a view, checked against what the storage holds.
  PickleValue rebuild_tensor(const List& args) {
    if (args.size() < 4 || !storages_.contains(node_of(args[0]))) {
      bad("a tensor without a storage");
    }
    const torch::Tensor& storage = *args[0].tensor();
    const auto offset = args[1].integer();
    const auto sizes = integers(args[2]);
    auto strides = integers(args[3]);
    if (!offset || !sizes || !strides || sizes->size() != strides->size()) {
      bad("a tensor's offset, sizes and strides are not what they should be");
    }
    const auto bytes = packed_size(*sizes, storage.scalar_type());
    if (!bytes || *offset < 0 || *offset > storage.numel()) {
      bad("a tensor of shape [{}] at {} of a storage of {}; no tensor can be that",
          fmt::join(*sizes, ", "), *offset, storage.numel());
    }
    if (*bytes == 0) return make_tensor(torch::empty(*sizes, storage.scalar_type()));
    int64_t last = *offset;
    for (size_t i = 0; i < sizes->size(); ++i) {
      int64_t& stride = (*strides)[i];
      if ((*sizes)[i] == 1) stride = 1;  // not used; any value may stand there
      int64_t span = 0;
      if (stride < 0 || __builtin_mul_overflow((*sizes)[i] - 1, stride, &span) ||
          __builtin_add_overflow(last, span, &last)) {
        last = storage.numel();
        break;
      }
    }
    if (last >= storage.numel()) {
      bad("a tensor of shape [{}], strides [{}], at {} goes beyond its storage of {} elements",
          fmt::join(*sizes, ", "), fmt::join(*strides, ", "), *offset, storage.numel());
    }
    // A few bytes could claim to be terabytes.
    if (*bytes > static_cast<uint64_t>(storage.numel()) * storage.element_size()) {
      bad("a tensor of shape [{}] repeats a storage of {} elements; save tensor.clone()",
          fmt::join(*sizes, ", "), storage.numel());
    }
    return make_tensor(storage.as_strided(*sizes, *strides, *offset));
  }

  // Nothing for types that are no tensor's, such as text and objects.
  std::optional<torch::Tensor> numpy_array(const PickleValue& shape_value,
                                           const PickleValue& dtype_value, bool fortran_order,
                                           const PickleValue& data) {
    const Object* dtype = dtype_value.object();
    if (dtype == nullptr || dtype->name != "numpy.dtype" || dtype->args.empty()) {
      bad("an array without a type");
    }
    const auto kind = dtype->args[0].text();
    const List* details = dtype->state.list();
    const auto order = details && details->size() > 1 ? (*details)[1].text() : std::nullopt;
    const auto type = kind && order && kind->size() + order->size() <= kMaxName
                          ? numpy_type(fmt::format("{}{}", *order, *kind))
                          : std::nullopt;
    if (!type) return std::nullopt;
    const auto shape = integers(shape_value);
    const auto size = shape ? packed_size(*shape, *type) : std::nullopt;
    if (!size || data.kind() != Kind::kBytes)
      bad("an array's shape or data are not what they should be");
    if (*size != data.text()->size()) {
      bad("an array of shape [{}] takes {} bytes, there are {}", fmt::join(*shape, ", "), *size,
          data.text()->size());
    }
    count_copy(*size);
    return from_numpy(*data.text(), *shape, *type, fortran_order);
  }

  PickleValue numpy_scalar(const std::string& name, List args) {
    if (args.size() != 2) bad("a number without a type");
    const auto array = numpy_array(make_list(Kind::kTuple, {}), args[0], false, args[1]);
    if (!array) return make_object(name, std::move(args));
    if (array->scalar_type() == torch::kBool) return make_scalar(array->item<bool>());
    if (array->is_floating_point()) return make_scalar(array->item<double>());
    return make_scalar(array->item<int64_t>());
  }

  // What __setstate__ or the update of __dict__ would do.
  void build(const PickleValue& to, PickleValue state) {
    Node* node = node_of(to);
    if (node != nullptr && (node->kind == Kind::kDict || node->kind == Kind::kTensor)) return;
    if (node == nullptr || node->kind != Kind::kObject) {
      bad("gives a state to what is no object; the file is damaged");
    }
    // (version, shape, dtype, whether in Fortran order, data), without the version before 2006.
    const List* parts = state.list();
    if (node->object->name == "numpy.ndarray" && parts != nullptr && parts->size() == 5) {
      const PickleValue& fortran = (*parts)[3];
      const bool fortran_order = fortran.boolean().value_or(fortran.integer().value_or(0) != 0);
      if (auto array = numpy_array((*parts)[1], (*parts)[2], fortran_order, (*parts)[4])) {
        node->kind = Kind::kTensor;
        node->tensor = std::move(*array);
        node->object.reset();
        return;
      }
    }
    node->object->state = std::move(state);
  }

  PickleValue long_integer(std::string_view little_endian) {
    if (little_endian.size() > sizeof(int64_t)) {
      List args = {make_text(Kind::kBytes, little_endian)};
      return make_object("builtins.int", std::move(args));
    }
    uint64_t value = 0;
    for (size_t i = 0; i < little_endian.size(); ++i) {
      value |= uint64_t{static_cast<unsigned char>(little_endian[i])} << (8 * i);
    }
    const size_t bits = 8 * little_endian.size();
    if (bits > 0 && bits < 64 && (value >> (bits - 1) & 1) != 0) value |= ~uint64_t{0} << bits;
    return make_scalar(static_cast<int64_t>(value));
  }

  void push_persistent(const PickleValue& id) {
    if (!load_) bad("refers to data outside the pickle; is it a part of a PyTorch checkpoint?");
    PickleValue loaded = load_(id);
    if (loaded.tensor() != nullptr) {
      const auto node = std::get<std::shared_ptr<Node>>(loaded.value_);
      if (storages_.insert(node.get()).second) nodes_.push_back(node);
    }
    push(std::move(loaded));
  }

  void step() {
    opcode_at_ = at_;
    opcode_ = 0;
    opcode_ = number<uint8_t>();
    switch (opcode_) {
      // Framing, which only helps whoever reads from a stream.
      case 0x80: {
        const int protocol = number<uint8_t>();
        if (protocol > kMaxProtocol) {
          bad("protocol {}, known are those up to {}", protocol, kMaxProtocol);
        }
        return;
      }
      case 0x95:
        if (number<uint64_t>() > bytes_.size() - at_) bad("a frame beyond the end of the file");
        return;
      case '.':
        stopped_ = true;
        return;

      // Numbers.
      case 'N':
        return push({});
      case 0x88:
      case 0x89:
        return push(make_scalar(opcode_ == 0x88));
      case 'I': {
        const auto text = line();
        if (text == "00" || text == "01") return push(make_scalar(text == "01"));
        return push(make_scalar(decimal<int64_t>(text)));
      }
      case 'L': {
        auto text = line();
        if (text.ends_with('L')) text.remove_suffix(1);
        return push(make_scalar(decimal<int64_t>(text)));
      }
      case 'J':
        return push(make_scalar(int64_t{number<int32_t>()}));
      case 'K':
        return push(make_scalar(int64_t{number<uint8_t>()}));
      case 'M':
        return push(make_scalar(int64_t{number<uint16_t>()}));
      case 0x8a:
        return push(long_integer(counted<uint8_t>()));
      case 0x8b:
        return push(long_integer(counted<int32_t>()));
      case 'F':
        return push(make_scalar(decimal<double>(line())));
      case 'G':
        return push(make_scalar(std::bit_cast<double>(__builtin_bswap64(number<uint64_t>()))));

      // Text and bytes.
      case 'S': {
        const auto text = line();
        const bool quoted = text.size() >= 2 && text.front() == text.back() &&
                            (text.front() == '\'' || text.front() == '"');
        const auto bytes = quoted ? unescaped(text.substr(1, text.size() - 2)) : std::nullopt;
        if (!bytes) bad("found {}, expected a quoted string", excerpt(text));
        return push(make_text(Kind::kBytes, *bytes));
      }
      case 'V': {
        const auto text = line();
        const auto utf8 = unescaped_unicode(text);
        if (!utf8) bad("found {}, expected escaped Unicode", excerpt(text));
        return push(make_text(Kind::kString, *utf8));
      }
      case 'T':
        return push(make_text(Kind::kBytes, counted<int32_t>()));
      case 'U':
      case 'C':
        return push(make_text(Kind::kBytes, counted<uint8_t>()));
      case 'B':
        return push(make_text(Kind::kBytes, counted<uint32_t>()));
      case 0x8e:
      case 0x96:
        return push(make_text(Kind::kBytes, counted<uint64_t>()));
      case 0x8c:
        return push(make_text(Kind::kString, counted<uint8_t>()));
      case 'X':
        return push(make_text(Kind::kString, counted<uint32_t>()));
      case 0x8d:
        return push(make_text(Kind::kString, counted<uint64_t>()));
      case 0x98:  // "the buffer on top is read-only"
        top();
        return;

      // Containers.
      case '(':
        count(1);
        marks_.push_back(stack_.size());
        return;
      case ']':
        return push(make_list(Kind::kList, {}));
      case 'l':
        return push(make_list(Kind::kList, pop_to_mark()));
      case 'a': {
        List last = pop_last(1);
        return add_items(top(), std::move(last));
      }
      case 'e':
      case 0x90: {
        List added = pop_to_mark();
        return add_items(top(), std::move(added));
      }
      case ')':
        return push(make_list(Kind::kTuple, {}));
      case 't':
        return push(make_list(Kind::kTuple, pop_to_mark()));
      case 0x85:
      case 0x86:
      case 0x87:
        return push(make_list(Kind::kTuple, pop_last(opcode_ - 0x84u)));
      case '}':
        return push(make_dict({}));
      case 'd':
        return push(make_dict(pop_to_mark()));
      case 's': {
        List added = pop_last(2);
        return add_entries(top(), std::move(added));
      }
      case 'u': {
        List added = pop_to_mark();
        return add_entries(top(), std::move(added));
      }
      case 0x8f:
        return push(make_object("builtins.set", {}));
      case 0x91: {
        List args = {make_list(Kind::kList, pop_to_mark())};
        return push(make_object("builtins.frozenset", std::move(args)));
      }

      // Stack and memo.
      case '0':
        if (!marks_.empty() && stack_.size() == marks_.back()) {
          marks_.pop_back();
        } else {
          pop();
        }
        return;
      case '1':
        pop_to_mark();
        return;
      case '2':
        return push(PickleValue(top()));
      case 'p':
        return remember(decimal<uint64_t>(line()));
      case 'q':
        return remember(number<uint8_t>());
      case 'r':
        return remember(number<uint32_t>());
      case 0x94:
        return remember(memo_.size());
      case 'g':
        return recall(decimal<uint64_t>(line()));
      case 'h':
        return recall(number<uint8_t>());
      case 'j':
        return recall(number<uint32_t>());

      // Names, calls, instances.
      case 'c': {
        const auto module = line();
        return push_global(module, line());
      }
      case 0x93: {
        const List names = pop_last(2);
        if (!names[0].text() || !names[1].text()) bad("a class whose name is no text");
        return push_global(*names[0].text(), *names[1].text());
      }
      case 'i': {
        const auto module = line();
        push_global(module, line());
        const PickleValue type = pop();
        return push(call(type, pop_to_mark()));
      }
      case 'o': {
        List parts = pop_to_mark();
        if (parts.empty()) bad("an instance without a class");
        const PickleValue type = std::move(parts.front());
        parts.erase(parts.begin());
        return push(call(type, std::move(parts)));
      }
      case 'R':
      case 0x81: {
        const List parts = pop_last(2);
        if (parts[1].kind() != Kind::kTuple) bad("arguments that are no tuple");
        count(parts[1].list()->size());
        return push(call(parts[0], *parts[1].list()));
      }
      case 0x92: {  // with keyword arguments, kept as the last one
        const List parts = pop_last(3);
        if (parts[1].kind() != Kind::kTuple) bad("arguments that are no tuple");
        count(parts[1].list()->size() + 1);
        List args = *parts[1].list();
        args.push_back(parts[2]);
        return push(call(parts[0], std::move(args)));
      }
      case 'b': {
        PickleValue state = pop();
        return build(top(), std::move(state));
      }
      case 'Q':
        return push_persistent(pop());
      case 'P':
        return push_persistent(make_text(Kind::kString, line()));

      case 0x82:
      case 0x83:
      case 0x84:
        bad("a class from Python's extension registry, which no checkpoint needs");
      case 0x97:
        bad("a buffer kept outside the file; save without buffer_callback");
      default:
        bad("none of a pickle's; is the file damaged, or no pickle at all?");
    }
  }

  // --- the end

  std::vector<Node*> children_of(const Node& node) const {
    std::vector<Node*> children;
    const auto add = [&](const PickleValue& value) {
      if (Node* child = node_of(value)) children.push_back(child);
    };
    const auto add_all = [&](const List& list, const Dict& dict) {
      for (const PickleValue& item : list) add(item);
      for (const auto& [key, value] : dict) {
        add(key);
        add(value);
      }
    };
    add_all(node.items, node.entries);
    if (node.object) {
      add_all(node.object->args, {});
      add_all(node.object->items, node.object->entries);
      add(node.object->state);
    }
    return children;
  }

  // Two values of one name would let two readers see two files.
  void check_keys(const Dict& entries) const {
    std::unordered_set<std::string_view> names;
    std::unordered_set<int64_t> numbers;
    for (const auto& [key, value] : entries) {
      if (key.text() && !names.insert(*key.text()).second) {
        fail("{}: a dict has {} twice; the file is not sound", where_, excerpt(*key.text()));
      }
      if (key.integer() && !numbers.insert(*key.integer()).second) {
        fail("{}: a dict has {} twice; the file is not sound", where_, *key.integer());
      }
    }
  }

  // Marks what the result holds with its depth, and refuses cycles and depths that would break
  // whoever walks it.
  void measure(const PickleValue& root) const {
    struct Frame {
      Node* node;
      std::vector<Node*> children;
      size_t next = 0;
      int below = 0;
    };
    if (node_of(root) == nullptr) return;
    std::vector<Frame> open;
    const auto enter = [&](Node* node) {
      check_keys(node->entries);
      if (node->object) check_keys(node->object->entries);
      node->depth = Node::kOpen;
      open.push_back({node, children_of(*node)});
    };
    enter(node_of(root));
    while (!open.empty()) {
      Frame& frame = open.back();
      if (frame.next == frame.children.size()) {
        const int depth = frame.node->depth = frame.below + 1;
        open.pop_back();
        if (!open.empty()) open.back().below = std::max(open.back().below, depth);
        continue;
      }
      Node* child = frame.children[frame.next++];
      if (child->depth == Node::kOpen) {
        fail("{}: the pickle holds a value that contains itself, which is not supported", where_);
      }
      if (child->depth > 0) frame.below = std::max(frame.below, child->depth);
      if (static_cast<int>(open.size()) + std::max(child->depth, 1) > kMaxDepth) {
        fail("{}: the pickle is nested deeper than {}; it is not sound", where_, kMaxDepth);
      }
      if (child->depth == 0) enter(child);
    }
  }

  const std::string& where_;
  std::string_view bytes_;
  const PersistentLoad& load_;
  size_t at_ = 0;
  size_t opcode_at_ = 0;
  unsigned opcode_ = 0;
  bool stopped_ = false;
  size_t values_ = 0;
  uint64_t copies_left_;
  std::vector<std::shared_ptr<Node>> nodes_;  // all that were made; goes last
  std::vector<PickleValue> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleValue> memo_;
  std::unordered_set<const Node*> storages_;
  std::set<std::string> inert_globals_;
};

Pickle take_pickle(const std::string& where, std::string_view& bytes, const PersistentLoad& load) {
  Unpickler unpickler(where, bytes, load);
  Pickle pickle = unpickler.run();
  bytes.remove_prefix(unpickler.consumed());
  return pickle;
}

Pickle read_pickle(const std::filesystem::path& path) {
  const std::string file = read_file(path);
  std::string_view bytes = file;
  Pickle pickle = take_pickle(path.string(), bytes);
  if (!bytes.empty()) {
    fail("{}: {} bytes follow the pickle; is it a PyTorch checkpoint?", path.string(),
         bytes.size());
  }
  return pickle;
}

}  // namespace ddaebm
