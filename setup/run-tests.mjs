// Runs test files with Node's test runner, with the project's limits and reporter.
import { statSync } from 'node:fs'
import { join } from 'node:path'
import { runToEnd } from './run-to-end.mjs'

/** Test files at once, on two cores: a third file uses the time that the others spend waiting for leases, restarts and timeouts. */
const filesAtOnce = 3
/** The limit of a test file and of each test in it, by default: enough for a soak of 30 minutes with its start and end. */
const fileLimitMs = 45 * 60_000

/** Runs test files and folders, and passes `flags` on to the runner. Resolves with its exit code. */
export function runTests(root, { paths, flags = [], env = {}, limitMs = fileLimitMs, atOnce = filesAtOnce }) {
  const node = join(root, '.setup', 'node')
  const options = [
    '--test',
    `--test-concurrency=${atOnce}`,
    `--test-timeout=${limitMs}`,
    '--test-global-setup=./test/support/global-setup.ts',
    '--test-reporter=./setup/closing-reporter.mjs',
    '--test-reporter-destination=stdout',
  ]
  // Every test file is a process of its own. The cache lets them share compiled code.
  const cache = { NODE_COMPILE_CACHE: join(root, '.setup', 'compile-cache') }
  return runToEnd(node, [...options, ...flags, ...paths.map(toPattern)], { cwd: root, env: { ...cache, ...env } })
}

/** Turns a folder into a pattern of its test files. Anything else goes to the runner as it is. */
function toPattern(path) {
  const isFolder = statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false
  return isFolder ? join(path, '**', '*.test.ts') : path
}
