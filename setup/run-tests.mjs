// Node's own runner over test files, with the project's limits and reporter.
import { statSync } from 'node:fs'
import { join } from 'node:path'
import { runToEnd } from './run-to-end.mjs'

/** Test files at once: as many as the smallest machine this is built for has cores. */
const filesAtOnce = 2
/** Longest for one test file, and for one test in it, unless more is said: a soak of 30 minutes with its start and end. */
const fileLimitMs = 45 * 60_000

/** Runs test files and folders; `flags` go to the runner as they are. Resolves with its exit code. */
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
  // Every test file is a process of its own: what one has compiled serves the others.
  const cache = { NODE_COMPILE_CACHE: join(root, '.setup', 'compile-cache') }
  return runToEnd(node, [...options, ...flags, ...paths.map(toPattern)], { cwd: root, env: { ...cache, ...env } })
}

/** A folder stands for the test files in it; anything else is the runner's to judge. */
function toPattern(path) {
  const isFolder = statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false
  return isFolder ? join(path, '**', '*.test.ts') : path
}
