// `node setup/bundle.mjs ROOT FOLDER` bundles the program of a clone, with the packages that it needs, into few files of JavaScript.
// setup/built-program.mjs runs it; docs/decisions/0084-built-program.md has the reasons.
import { readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { build } from 'vite'

/** The program, and what it starts as processes of their own, beneath `src`. */
const entries = {
  cli: 'cli/main.ts',
  'worker-process': 'cli/local-worker/worker-process.ts',
  'server-process': 'cli/server-process/server-process.ts',
  'egress-process': 'worker/egress/egress-process.ts',
  workload: 'worker/drivers/microsandbox/workload.ts',
  'sdk-call': 'worker/drivers/microsandbox/sdk-call.ts',
}
/** Packages that load files of their own at run time: native code, programs, WebAssembly. They stay in `node_modules`. */
const external = ['microsandbox', 'ssh2', '@lydell/node-pty', 'pg-native', 'cpu-features']

const [root = '', target = ''] = process.argv.slice(2)
const source = join(root, 'src')

await build({
  root,
  configFile: false,
  envFile: false,
  logLevel: 'error',
  plugins: [{ name: 'sandyard-paths', transform: { order: 'pre', handler: withPathsOfSource } }],
  ssr: { noExternal: true, external, target: 'node' },
  build: {
    ssr: true,
    outDir: target,
    emptyOutDir: true,
    target: 'node24',
    sourcemap: true,
    copyPublicDir: false,
    reportCompressedSize: false,
    rolldownOptions: {
      input: Object.fromEntries(Object.entries(entries).map(([name, path]) => [name, join(source, path)])),
      output: {
        entryFileNames: '[name].js',
        chunkFileNames: '[name]-[hash].js',
        comments: false,
        strictExecutionOrder: true,
        sourcemapExcludeSources: true,
        // Names stay: messages and metrics have those of classes and functions.
        minify: { compress: true, mangle: false, codegen: { removeWhitespace: true } },
      },
      onLog: () => undefined,
    },
  },
})
for (const name of Object.keys(entries)) readFileSync(join(target, `${name}.js`)) // throws if one is missing

/**
 * Scripts and other files stay where they are, so paths that a module makes from its own must begin there. Programs alone lie beside each
 * other in `target`: their names end with the extension of the module that starts them.
 */
function withPathsOfSource(code, id) {
  if (!id.startsWith(source) || !code.includes('import.meta.dirname')) return null
  const path = relative(target, dirname(id)).replaceAll('\\', '/')
  const ofFile = /import\.meta\.dirname(?!, `[\w-]+\$\{extname\(import\.meta\.filename\)\}`)/g
  return code.replaceAll(ofFile, () => `(import.meta.dirname + ${JSON.stringify(`/${path}`)})`)
}
