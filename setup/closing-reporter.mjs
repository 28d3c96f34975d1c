// Node's `spec` reporter, followed by the slowest files, each skipped test with its reason, and the counts on the last
// line. A run in which no test ran counts as failed, because it proves nothing.
import { Readable } from 'node:stream'
import { spec as Spec } from 'node:test/reporters'
import { relative } from 'node:path'

/** The number of slowest files to list. */
const SLOWEST = 8

/** The reporter for `--test-reporter`. It converts the test runner's events to text. */
export default async function* report(events) {
  const skipped = []
  const files = []
  let counts
  async function* watched() {
    for await (const event of events) {
      if (event.type === 'test:pass' && event.data.skip !== undefined) skipped.push(event.data)
      // The runner sends a summary of each file, and at the end one of the whole run, which has no file name.
      if (event.type === 'test:summary' && event.data.file === undefined) counts = event.data.counts
      if (event.type === 'test:summary' && event.data.file !== undefined) files.push(event.data)
      yield event
    }
  }
  yield* Readable.from(watched()).compose(new Spec())
  if (files.length > SLOWEST) yield `\nSlowest files:\n${slowestOf(files)}`
  if (skipped.length > 0) yield `\nSkipped, so not tested on this machine:\n${skipped.map(describe).join('')}`
  const { passed = 0, failed = 0, cancelled = 0, skipped: skips = 0 } = counts ?? {}
  if (passed + failed + cancelled === 0) {
    process.exitCode = 1
    yield '\nNo test ran, so this run has failed.\n'
  }
  yield `\n${passed} passed, ${failed + cancelled} failed, ${skips} skipped\n`
}

function slowestOf(files) {
  const slowest = files.toSorted((one, other) => other.duration_ms - one.duration_ms).slice(0, SLOWEST)
  return slowest
    .map(({ file, duration_ms }) => `  - ${(duration_ms / 1000).toFixed(1)} s ${relative(process.cwd(), file)}\n`)
    .join('')
}

function describe({ name, file, skip }) {
  const reason = typeof skip === 'string' && skip !== '' ? skip : 'no reason given'
  return `  - ${file === undefined ? '' : `${relative(process.cwd(), file)}: `}${name}: ${reason}\n`
}
