// swift.js - is this Swift? Parses files with tree-sitter's grammar, and prints where one has an error
//
//     node swift.js FOLDER-OF-NODE_MODULES FILE...
//
// The grammar is no compiler: it knows no names and no types.
const path = require('path')
const fs = require('fs')
const [modules, ...files] = process.argv.slice(2)
const Parser = require(path.join(path.resolve(modules), 'web-tree-sitter'))

function errors(node) {
    if (!node.hasError()) return []
    if (node.type === 'ERROR' || node.isMissing()) return [node]
    return node.children.flatMap(errors)
}

async function main() {
    await Parser.init()
    const grammar = path.join(path.resolve(modules), 'tree-sitter-wasms/out/tree-sitter-swift.wasm')
    const parser = new Parser()
    parser.setLanguage(await Parser.Language.load(grammar))
    let wrong = 0
    for (const file of files) {
        const root = parser.parse(fs.readFileSync(file, 'utf8')).rootNode
        for (const node of errors(root)) {
            console.log(`${file}:${node.startPosition.row + 1}: ${node.text.split('\n')[0]}`)
            wrong++
        }
        if (root.hasError() && !wrong) console.log(`${file}: does not parse`)
        wrong += root.hasError()
    }
    process.exit(wrong || !files.length ? 1 : 0)
}
main()
