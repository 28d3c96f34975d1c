// `npm test [-- PATH… | --flag=value…]`: the set-up, then the tests (all of them, or those of the named files and
// folders) with Node's own runner. Ends with every skipped test and its reason and the counts; fails when none ran.
import { statSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ensureNodePackages } from './node-packages.mjs'
import { runMain } from './say.mjs'
import { runToEnd } from './run-to-end.mjs'
import { ensureTestPackages } from './system-packages.mjs'

/** Test files at once: as many as the smallest machine this is built for has cores. */
const filesAtOnce = 2
/** Longest for one test file, and for one test in it; the crash tests take minutes. */
const fileLimitMs = 10 * 60_000

const root = fileURLToPath(new URL('..', import.meta.url))

await runMain(async () => {
  ensureNodePackages(root)
  ensureTestPackages()
  const given = process.argv.slice(2)
  const flags = given.filter((word) => word.startsWith('-'))
  const paths = given.filter((word) => !word.startsWith('-')).map(toPattern)
  const patterns = paths.length === 0 ? ['test/**/*.test.ts'] : paths
  const node = join(root, '.setup', 'node')
  // Every test file is a process of its own: what one has compiled serves the others.
  const env = { NODE_COMPILE_CACHE: join(root, '.setup', 'compile-cache') }
  return await runToEnd(node, [...runnerOptions(), ...flags, ...patterns], { cwd: root, env })
})

function runnerOptions() {
  return [
    '--test',
    `--test-concurrency=${filesAtOnce}`,
    `--test-timeout=${fileLimitMs}`,
    '--test-global-setup=./test/support/global-setup.ts',
    '--test-reporter=./setup/closing-reporter.mjs',
    '--test-reporter-destination=stdout',
  ]
}

/** A folder stands for the test files in it; anything else is the runner's to judge. */
function toPattern(path) {
  const isFolder = statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false
  return isFolder ? join(path, '**', '*.test.ts') : path
}
