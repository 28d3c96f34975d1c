// Runs test files with Node's test runner, with the project's limits and reporter.
import { readdirSync, statSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { programOf } from './built-program.mjs'
import { ensureBuilt } from './ensure-built.mjs'
import { runToEnd } from './run-to-end.mjs'

/**
 * The number of test files that run at once, on two cores. With three files, one can use the processor while the others
 * wait for leases, restarts and timeouts.
 */
const filesAtOnce = 3
/**
 * The default time limit of a test file and of each test in it. The longest file, the schedules of faults, may run beside
 * all others until their end; `.ci/run` ends after an hour.
 */
const fileLimitMs = 55 * 60_000
/** The test files that start before all others. One that started last would run alone at the end, for many minutes. */
const longest = ['test/fault/schedules.test.ts']

/**
 * Runs test files and folders, and passes `flags` to Node's test runner. `through` is a command that runs the runner, such
 * as `nsenter`. Resolves with the runner's exit code.
 */
export function runTests(root, options) {
  const { paths, flags = [], env = {}, limitMs = fileLimitMs, atOnce = filesAtOnce, through = [] } = options
  const node = join(root, '.setup', 'node')
  const runner = [
    '--test',
    `--test-concurrency=${atOnce}`,
    `--test-timeout=${limitMs}`,
    '--test-global-setup=./test/support/global-setup.ts',
    '--test-reporter=./setup/closing-reporter.mjs',
    '--test-reporter-destination=stdout',
  ]
  // What tests start is what users start.
  const program = programOf(root)
  ensureBuilt(root, [program])
  const built = program.isBuilt() ? { SANDYARD_TEST_PROGRAM: program.file } : {}
  // Every test file runs in a process of its own. The cache lets these processes share compiled code.
  const cache = { NODE_COMPILE_CACHE: join(root, '.setup', 'compile-cache') }
  const files = paths.flatMap((path) => listFiles(root, path))
  const [file, ...args] = [...through, node, ...runner, ...flags, ...files]
  return runToEnd(file, args, {
    cwd: root,
    env: { ...cache, ...built, ...env },
  })
}

/**
 * Lists the test files in a folder. Any other path is passed to the runner unchanged. The runner sorts the files by their
 * paths, so the absolute paths of the longest files come first.
 */
function listFiles(root, path) {
  const folder = resolve(root, path)
  const isFolder = statSync(folder, { throwIfNoEntry: false })?.isDirectory() ?? false
  if (!isFolder) return [path]
  const names = readdirSync(folder, { recursive: true, encoding: 'utf8' })
  const files = names.filter((name) => name.endsWith('.test.ts')).map((name) => join(path, name))
  return files.map((file) => (longest.includes(file) ? join(root, file) : file))
}
