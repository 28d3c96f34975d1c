// Node's `spec` reporter, followed by the slowest files, what was skipped with the reasons, each failed test with its error, and
// the counts on the last line. So the end of a long log says what is wrong. A run in which no test ran counts as failed, because
// it proves nothing.
import { Readable } from 'node:stream'
import { spec as Spec } from 'node:test/reporters'
import { relative } from 'node:path'
import { inspect } from 'node:util'

/** The number of slowest files to list. */
const SLOWEST = 8
/** How many characters of the error of a failed test are repeated at the end. `spec` shows all of it. */
const SHOWN_CHARS = 2_000

/** The reporter for `--test-reporter`. It converts the test runner's events to text. */
export default async function* report(events) {
  const skipped = []
  const failures = []
  const files = []
  let counts
  async function* watched() {
    for await (const event of events) {
      if (event.type === 'test:pass' && event.data.skip !== undefined) skipped.push(event.data)
      if (event.type === 'test:fail' && event.data.details.error.failureType !== 'subtestsFailed')
        failures.push(event.data)
      // The runner sends a summary of each file, and at the end one of the whole run, which has no file name.
      if (event.type === 'test:summary' && event.data.file === undefined) counts = event.data.counts
      if (event.type === 'test:summary' && event.data.file !== undefined) files.push(event.data)
      yield event
    }
  }
  yield* Readable.from(watched()).compose(new Spec())
  if (files.length > SLOWEST) yield `\nSlowest files:\n${slowestOf(files)}`
  if (skipped.length > 0) yield `\nSkipped, so not tested on this machine:\n${describeSkipped(skipped)}`
  if (failures.length > 0) yield `\nFailed:\n${failures.map(describeFailure).join('')}`
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

/** One line for each file and reason: most reasons hold for all tests of a file. */
function describeSkipped(skipped) {
  const groups = Map.groupBy(skipped, ({ file, skip }) => {
    const reason = typeof skip === 'string' && skip !== '' ? skip : 'no reason given'
    return JSON.stringify([placeOf(file), reason])
  })
  return [...groups]
    .map(([key, tests]) => {
      const [place, reason] = JSON.parse(key)
      return `  - ${place}${tests.length === 1 ? tests[0].name : `${tests.length} tests`}: ${reason}\n`
    })
    .join('')
}

function describeFailure({ name, file, details: { error } }) {
  const text = inspect(error.cause ?? error)
    .replaceAll(/^ *at .*node:internal.*\n/gm, '')
    .slice(0, SHOWN_CHARS)
  return `  - ${placeOf(file)}${name}:\n${text.replaceAll(/^/gm, '      ')}\n`
}

function placeOf(file) {
  return file === undefined ? '' : `${relative(process.cwd(), file)}: `
}
