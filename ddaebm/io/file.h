#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace ddaebm {

// The whole file; an Error names the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

// Writes beside `path` under a temporary name, flushes, renames, then flushes the folder: `path`
// holds either what it held before or all of `bytes`, at every instant. A failure (a full disk,
// say) removes the temporary file and leaves `path` as it was.
void write_file(const std::filesystem::path& path, std::string_view bytes);

// Those that write_file has left in a folder where its process was killed. Nobody else may write
// there meanwhile.
void remove_temporary_files(const std::filesystem::path& folder);

}  // namespace ddaebm
