# Finds LibTorch: where CMAKE_PREFIX_PATH points (a zip, or a wheel's torch folder), else the
# distribution's package, else the torch of python3 on the PATH. Defines the target ddaebm_torch.

# A LibTorch with CUDA would compile a program to ask which GPU is here; what ours is compiled for is
# DDAEBM_CUDA_ARCHITECTURES, so any answer does.
if(NOT DEFINED TORCH_CUDA_ARCH_LIST)
  set(TORCH_CUDA_ARCH_LIST 9.0)
endif()
# CMake 3.25 knows no flag of nvcc for C++20; our kernels need none of it.
set(CMAKE_CUDA_STANDARD 17)
find_package(Torch QUIET)
if(NOT Torch_FOUND)
  execute_process(
    COMMAND python3 -c "import torch; print(torch.utils.cmake_prefix_path)"
    OUTPUT_VARIABLE wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_package(Torch QUIET HINTS "${wheel}")
endif()
if(NOT Torch_FOUND)
  message(FATAL_ERROR
    "LibTorch was not found. Install it (Debian: apt-get install libtorch-dev), or pass "
    "-DCMAKE_PREFIX_PATH=/path/to/libtorch, or put a python3 with torch on the PATH.")
endif()

# An imported target keeps torch's include folders out of our warnings.
add_library(ddaebm_torch INTERFACE IMPORTED GLOBAL)
target_include_directories(ddaebm_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
separate_arguments(torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
target_compile_options(ddaebm_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${torch_flags}>)
# PyTorch's wheel gives away the parts of the C++ library that it was linked with, of another version: with
# its std::filesystem::remove_all a program crashes. So the system's own is asked first.
if(NOT APPLE AND NOT CMAKE_CXX_FLAGS MATCHES "libc\\+\\+")
  target_link_libraries(ddaebm_torch INTERFACE -Wl,--push-state,--no-as-needed,-lstdc++,--pop-state)
endif()
target_link_libraries(ddaebm_torch INTERFACE ${TORCH_LIBRARIES})

# A LibTorch with CUDA brings c10_cuda; then the captured step is built too.
if(TARGET c10_cuda OR TARGET torch_cuda)
  set(DDAEBM_CUDA ON)
else()
  set(DDAEBM_CUDA OFF)
endif()
message(STATUS "LibTorch ${Torch_VERSION} in ${Torch_DIR}, CUDA ${DDAEBM_CUDA}")

# Debian's LibTorch takes whatever BLAS is installed; the reference BLAS is 70 times slower than
# OpenBLAS. Which threads run is settled by ops::tune_process.
