// Node's `spec` reporter, and after it what a person must not miss: each skipped test with its reason, and the counts
// alone on the last line. A run in which no test ran has proved nothing, and fails.
import { Readable } from 'node:stream'
import { spec as Spec } from 'node:test/reporters'
import { relative } from 'node:path'

/** Reporter for `--test-reporter`: takes the runner's events, gives the text to show. */
export default async function* report(events) {
  const skipped = []
  let counts
  async function* watched() {
    for await (const event of events) {
      if (event.type === 'test:pass' && event.data.skip !== undefined) skipped.push(event.data)
      // The runner sums up each file, and last, without a file's name, the whole run.
      if (event.type === 'test:summary' && event.data.file === undefined) counts = event.data.counts
      yield event
    }
  }
  yield* Readable.from(watched()).compose(new Spec())
  if (skipped.length > 0) yield `\nSkipped, so not proved on this machine:\n${skipped.map(describe).join('')}`
  const { passed = 0, failed = 0, cancelled = 0, skipped: skips = 0 } = counts ?? {}
  if (passed + failed + cancelled === 0) {
    process.exitCode = 1
    yield '\nNo test ran, which proves nothing: this run has failed.\n'
  }
  yield `\n${passed} passed, ${failed + cancelled} failed, ${skips} skipped\n`
}

function describe({ name, file, skip }) {
  const reason = typeof skip === 'string' && skip !== '' ? skip : 'no reason given'
  return `  - ${file === undefined ? '' : `${relative(process.cwd(), file)}: `}${name}: ${reason}\n`
}
