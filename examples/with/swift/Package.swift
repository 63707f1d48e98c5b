// swift-tools-version:5.5
// Untested: no machine of ours has a Swift compiler. CI parses this file, and builds CGpusync with SwiftPM's options.
import PackageDescription

let package = Package(
    name: "Gpusync",
    platforms: [.macOS(.v10_15), .iOS(.v13)],
    products: [.library(name: "Gpusync", targets: ["Gpusync"])],
    targets: [
        .target( // gpusync.h, and the one C file with the implementation
            name: "CGpusync",
            linkerSettings: [
                .linkedFramework("Metal"), .linkedFramework("CoreGraphics"), .linkedFramework("Foundation"),
                .linkedLibrary("objc"),
            ]),
        .target(name: "Gpusync", dependencies: ["CGpusync"]),
        .executableTarget(name: "Example", dependencies: ["Gpusync"]),
    ])
