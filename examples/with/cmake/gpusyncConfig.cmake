# The target gpusync::gpusync. The header has nothing to build: the target carries the folder of the header, and what
# the implementation links with. CMakeLists.txt includes this file, and `make install` copies it. It sets gpusync_FOUND,
# gpusync_VERSION and gpusync_INCLUDE_DIR, or gpusync_NOT_FOUND_MESSAGE: why there is no target.
# SOFTMETAL, on Linux: the directory of the software Metal device, which `make softmetal` prints.
set(gpusync_FOUND FALSE)
set(gpusync_INCLUDE_DIR "")
foreach(gpusync_part IN LISTS gpusync_FIND_COMPONENTS)
    set(gpusync_${gpusync_part}_FOUND FALSE)
    if(gpusync_FIND_REQUIRED_${gpusync_part})
        set(gpusync_NOT_FOUND_MESSAGE "gpusync has no component ${gpusync_part}, and no other.")
        return()
    endif()
endforeach()

# The header is in include of a folder above, or at the top of the project's own directory. How far above, packagers
# decide: the nearest counts. The real path, because /lib may be a link to /usr/lib.
get_filename_component(gpusync_here "${CMAKE_CURRENT_LIST_DIR}" REALPATH)
foreach(gpusync_up .. ../.. ../../.. ../../../..)
    foreach(gpusync_folder "${gpusync_here}/${gpusync_up}/include" "${gpusync_here}/${gpusync_up}")
        if(NOT gpusync_INCLUDE_DIR AND EXISTS "${gpusync_folder}/gpusync.h")
            get_filename_component(gpusync_INCLUDE_DIR "${gpusync_folder}" ABSOLUTE)
        endif()
    endforeach()
endforeach()
if(NOT gpusync_INCLUDE_DIR)
    set(gpusync_NOT_FOUND_MESSAGE "No folder above ${gpusync_here} has include/gpusync.h.")
    return()
endif()

# The caller has set the version of the package: a header of another one is of another installation.
function(gpusync_version_of folder variable)
    file(STRINGS "${folder}/gpusync.h" lines REGEX "^#define GPUSYNC_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    list(JOIN numbers . version)
    set(${variable} ${version} PARENT_SCOPE)
endfunction()
gpusync_version_of("${gpusync_INCLUDE_DIR}" gpusync_version)
if(gpusync_VERSION AND NOT gpusync_VERSION VERSION_EQUAL gpusync_version)
    set(gpusync_NOT_FOUND_MESSAGE
        "${gpusync_INCLUDE_DIR}/gpusync.h is of ${gpusync_version}, and the package in ${gpusync_here} of ${gpusync_VERSION}.")
    return()
endif()
set(gpusync_VERSION ${gpusync_version})

if(TARGET gpusync::gpusync)
    # There is one target, so all of a tree compiles with the header that came first. A patch of it has the same API,
    # and may do: that is a warning. Another minor number is not what this caller asked for.
    get_target_property(gpusync_first gpusync::gpusync INTERFACE_GPUSYNC_INCLUDE_DIR)
    if(gpusync_first) # else the target is one of the project's own
        file(SHA256 "${gpusync_first}/gpusync.h" gpusync_first_sum)
        file(SHA256 "${gpusync_INCLUDE_DIR}/gpusync.h" gpusync_sum)
        gpusync_version_of("${gpusync_first}" gpusync_version)
        set(gpusync_NOT_FOUND_MESSAGE "The target gpusync::gpusync is there already, with ${gpusync_first}/gpusync.h \
of ${gpusync_version}. It does not get ${gpusync_INCLUDE_DIR}/gpusync.h of ${gpusync_VERSION}.")
        string(REGEX MATCH "^[0-9]+[.][0-9]+[.]" gpusync_minor ${gpusync_version})
        string(FIND ${gpusync_VERSION} ${gpusync_minor} gpusync_at)
        if(NOT gpusync_at EQUAL 0)
            return()
        elseif(NOT gpusync_sum STREQUAL gpusync_first_sum)
            message(WARNING "${gpusync_NOT_FOUND_MESSAGE}")
        endif()
        set(gpusync_INCLUDE_DIR "${gpusync_first}")
        set(gpusync_VERSION ${gpusync_version})
    endif()
    set(gpusync_FOUND TRUE)
    return()
endif()

# IMPORTED: a project can export a library that links with this target. GLOBAL: the folder that calls add_subdirectory
# sees the target, too.
add_library(gpusync::gpusync INTERFACE IMPORTED GLOBAL)
target_include_directories(gpusync::gpusync INTERFACE "${gpusync_INCLUDE_DIR}")
set_target_properties(gpusync::gpusync PROPERTIES INTERFACE_GPUSYNC_INCLUDE_DIR "${gpusync_INCLUDE_DIR}")
if(SOFTMETAL)
    if(NOT IS_ABSOLUTE "${SOFTMETAL}" OR NOT EXISTS "${SOFTMETAL}/libsoftmetal.so")
        message(FATAL_ERROR "SOFTMETAL is ${SOFTMETAL}, and not the whole path of a folder with libsoftmetal.so.")
    endif()
    find_package(Threads REQUIRED)
    target_include_directories(gpusync::gpusync INTERFACE "${SOFTMETAL}") # softmetal.h
    target_compile_definitions(gpusync::gpusync INTERFACE GPUSYNC_OBJC=1)
    target_link_libraries(gpusync::gpusync INTERFACE "${SOFTMETAL}/libsoftmetal.so" Threads::Threads)
elseif(APPLE)
    target_link_libraries(gpusync::gpusync INTERFACE
        "-framework Metal" "-framework CoreGraphics" "-framework Foundation" objc)
endif()
set(gpusync_FOUND TRUE)
