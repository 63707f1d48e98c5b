# The target gpusync::gpusync. The header has nothing to build: the target carries the folder of the header, and what
# the implementation links with. CMakeLists.txt includes this file, and `make install` copies it.
# SOFTMETAL, on Linux: the directory of the software Metal device, which `make softmetal` prints.
if(TARGET gpusync::gpusync)
    return()
endif()

# Installed, the header is in PREFIX/include. In the project's own directory it is at the top.
get_filename_component(gpusync_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}/../../../include" ABSOLUTE)
if(NOT EXISTS "${gpusync_INCLUDE_DIR}/gpusync.h")
    get_filename_component(gpusync_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
endif()

# IMPORTED: a project can export a library that links with this target. GLOBAL: the folder that calls add_subdirectory
# sees the target, too.
add_library(gpusync::gpusync INTERFACE IMPORTED GLOBAL)
target_include_directories(gpusync::gpusync INTERFACE "${gpusync_INCLUDE_DIR}")
if(SOFTMETAL)
    find_package(Threads REQUIRED)
    target_compile_definitions(gpusync::gpusync INTERFACE GPUSYNC_OBJC=1)
    target_link_libraries(gpusync::gpusync INTERFACE "${SOFTMETAL}/libsoftmetal.so" Threads::Threads)
elseif(APPLE)
    target_link_libraries(gpusync::gpusync INTERFACE
        "-framework Metal" "-framework CoreGraphics" "-framework Foundation" objc)
endif()
