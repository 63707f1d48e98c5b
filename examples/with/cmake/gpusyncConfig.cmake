# The target gpusync::gpusync. The header has nothing to build: the target carries the folder of the header, and what
# the implementation links with. CMakeLists.txt includes this file, and `make install` copies it.
# SOFTMETAL, on Linux: the directory of the software Metal device, which `make softmetal` prints.
set(gpusync_FOUND FALSE)

# The header of an installation, else that of the project's own directory. The real path, because /lib may be a link.
get_filename_component(gpusync_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}" REALPATH)
get_filename_component(gpusync_INCLUDE_DIR "${gpusync_INCLUDE_DIR}/../../.." ABSOLUTE)
if(EXISTS "${gpusync_INCLUDE_DIR}/include/gpusync.h")
    set(gpusync_INCLUDE_DIR "${gpusync_INCLUDE_DIR}/include")
elseif(NOT EXISTS "${gpusync_INCLUDE_DIR}/gpusync.h")
    set(gpusync_NOT_FOUND_MESSAGE "There is no ${gpusync_INCLUDE_DIR}/include/gpusync.h.")
    return()
endif()

# There is one target, so all of a tree compiles with the header that came first.
if(TARGET gpusync::gpusync)
    get_target_property(gpusync_first gpusync::gpusync INTERFACE_INCLUDE_DIRECTORIES)
    list(GET gpusync_first 0 gpusync_first)
    file(SHA256 "${gpusync_first}/gpusync.h" gpusync_first_sum)
    file(SHA256 "${gpusync_INCLUDE_DIR}/gpusync.h" gpusync_sum)
    if(NOT gpusync_sum STREQUAL gpusync_first_sum)
        set(gpusync_NOT_FOUND_MESSAGE "The target gpusync::gpusync is there already, with another header: \
${gpusync_first}/gpusync.h, and not ${gpusync_INCLUDE_DIR}/gpusync.h.")
        return()
    endif()
    set(gpusync_FOUND TRUE)
    return()
endif()

# IMPORTED: a project can export a library that links with this target. GLOBAL: the folder that calls add_subdirectory
# sees the target, too.
add_library(gpusync::gpusync INTERFACE IMPORTED GLOBAL)
target_include_directories(gpusync::gpusync INTERFACE "${gpusync_INCLUDE_DIR}")
if(SOFTMETAL)
    find_package(Threads REQUIRED)
    target_include_directories(gpusync::gpusync INTERFACE "${SOFTMETAL}") # softmetal.h
    target_compile_definitions(gpusync::gpusync INTERFACE GPUSYNC_OBJC=1)
    target_link_libraries(gpusync::gpusync INTERFACE "${SOFTMETAL}/libsoftmetal.so" Threads::Threads)
elseif(APPLE)
    target_link_libraries(gpusync::gpusync INTERFACE
        "-framework Metal" "-framework CoreGraphics" "-framework Foundation" objc)
endif()
set(gpusync_FOUND TRUE)
