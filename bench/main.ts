import { writeFile } from 'node:fs/promises'
import { cpus, loadavg } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { BENCHMARKS, FULL, QUICK, type Plan } from './benchmarks.ts'
import { describeLoad, describeMachine } from './support/machine.ts'
import { runApart } from './support/run-apart.ts'
import { formatVerdict, renderTable, type ResultRow } from './support/report.ts'
import {
  figureOf,
  formatSpread,
  mergeResults,
  readStoredResults,
  writeStoredResults,
} from './support/stored-results.ts'

const PICTURE = join(import.meta.dirname, '../docs/img/phases.svg')

// A benchmark ends when this process exits (support/run-apart.ts). Therefore a signal must end this process cleanly.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => process.exit(1))

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    help: { type: 'boolean', short: 'h' },
    list: { type: 'boolean' },
    json: { type: 'string' },
    picture: { type: 'string' },
    record: { type: 'boolean' },
  },
})
const isQuick = positionals.length === 1 && positionals[0] === 'quick'
const unknown = isQuick ? [] : positionals.filter((name) => !(name in BENCHMARKS))
if (values.help === true || values.list === true || unknown.length > 0) {
  for (const name of unknown) process.stdout.write(`there is no benchmark '${name}'\n`)
  process.stdout.write(`npm run bench [-- NAME… --json FILE --picture FILE --record]
  without names: as many as fit into ${String(FULL.limitSeconds / 60)} minutes, the most important first
  quick: a few in ${String(QUICK.limitSeconds / 60)} minutes, with fewer samples
  --json FILE writes the samples, --picture FILE the picture of the phases of a create
  --record keeps the results in bench/results.json, docs/performance.md and docs/img/phases.svg;
    beside other work, it keeps a quiet run's instead
`)
  for (const [name, { about }] of Object.entries(BENCHMARKS)) process.stdout.write(`  ${name.padEnd(10)} ${about}\n`)
  process.exitCode = unknown.length > 0 ? 2 : 0
} else if (isQuick) await runAll(QUICK)
else await runAll(positionals.length > 0 ? { names: positionals, limitSeconds: Number.POSITIVE_INFINITY } : FULL)

/** Runs the benchmarks in order. A missed goal is a result. Only a failed measurement sets exit code 1. */
async function runAll({ names, limitSeconds }: Plan): Promise<void> {
  const info = { at: new Date().toISOString().slice(0, 10), machine: describeMachine(), load: loadavg()[0] ?? 0 }
  process.stdout.write(`${info.machine}, ${describeLoad()}\n`)
  const rows: ResultRow[] = []
  const leftOut: string[] = []
  let stored = await readStoredResults()
  const fromMs = performance.now()
  for (const name of names) {
    const benchmark = BENCHMARKS[name]
    if (benchmark === undefined) continue
    const usualSeconds = isQuick ? (benchmark.quickSeconds ?? benchmark.usualSeconds) : benchmark.usualSeconds
    if ((performance.now() - fromMs) / 1000 + usualSeconds > limitSeconds) {
      leftOut.push(name)
      continue
    }
    process.stdout.write(`\n${name}: ${benchmark.about}\n`)
    const load = loadavg()[0] ?? 0
    const beganMs = performance.now()
    try {
      const { rows: found, picture } = await runApart(name, isQuick)
      if (picture !== null) await keepPicture(picture)
      for (const row of found) process.stdout.write(`  ${lineOf(row)}\n`)
      rows.push(...found)
      stored = mergeResults(stored, found, { ...info, load, cores: cpus().length })
    } catch (error) {
      process.stdout.write(`  FAILED: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`)
      process.exitCode = 1
    }
    process.stdout.write(`  (took ${((performance.now() - beganMs) / 1000).toFixed(0)} s)\n`)
  }
  process.stdout.write(`\n${renderTable(rows, (row) => spreadOf(stored, row))}\n`)
  const minutes = ((performance.now() - fromMs) / 60_000).toFixed(1)
  process.stdout.write(`\n${info.machine}, ${describeLoad()}; took ${minutes} minutes\n`)
  if (leftOut.length > 0)
    process.stdout.write(`LEFT OUT, because ${String(limitSeconds / 60)} minutes would not do: ${leftOut.join(', ')}\n`)
  if (values.json !== undefined)
    await writeFile(values.json, `${JSON.stringify({ machine: info.machine, rows }, null, 2)}\n`)
  if (values.record === true) await writeStoredResults(stored)
}

async function keepPicture(svg: string): Promise<void> {
  if (values.picture !== undefined) await writeFile(values.picture, svg)
  if (values.record === true) await writeFile(PICTURE, svg)
}

/** The spread of a row over this run and the recorded ones of this machine. */
function spreadOf(stored: readonly { benchmark: string; what: string; figures: readonly number[] }[], row: ResultRow) {
  const found = stored.find(({ benchmark, what }) => benchmark === row.benchmark && what === row.what)
  return figureOf(row) === null ? '' : formatSpread(found?.figures ?? [])
}

function lineOf(row: ResultRow): string {
  const ratio = row.ratio === null ? '' : `; ratio ${row.ratio.toFixed(2)}`
  const goal = row.goal === '' ? '' : ` (goal ${row.goal}: ${formatVerdict(row)})`
  return `${row.what}: ${row.measured}${row.limit === '' ? '' : ` against ${row.limit}`}${ratio}${goal}`
}
