import { writeFile } from 'node:fs/promises'
import { parseArgs } from 'node:util'
import { benchChannels } from './channels.ts'
import { benchCreates } from './creates.ts'
import { benchDashboard } from './dashboard.ts'
import { benchEgress } from './egress.ts'
import { benchEventStreams } from './event-streams.ts'
import { benchEvents } from './events.ts'
import { benchExec } from './exec.ts'
import { benchFleet } from './fleet.ts'
import { benchGet } from './get.ts'
import { benchHostile } from './hostile.ts'
import { benchList } from './list.ts'
import { benchLifecycles } from './lifecycles.ts'
import { benchMemory } from './memory.ts'
import { benchMetrics } from './metrics.ts'
import { benchMillion } from './million.ts'
import { benchPreview } from './preview.ts'
import { benchSnapshots } from './snapshots.ts'
import { benchSsh } from './ssh.ts'
import { benchStart } from './start.ts'
import { benchStarts } from './starts.ts'
import { benchStream } from './stream.ts'
import { benchUsage } from './usage.ts'
import { benchVolume } from './volume.ts'
import { benchWaits } from './waits.ts'
import { benchWebhooks } from './webhooks.ts'
import { describeMachine } from './support/machine.ts'
import { renderTable, formatVerdict, type ResultRow } from './support/report.ts'

type Benchmark = { readonly about: string; readonly run: () => Promise<readonly ResultRow[]> }

const BENCHMARKS: Readonly<Record<string, Benchmark>> = {
  creates: { about: 'durable creates per second, against pgbench committing the same rows', run: benchCreates },
  get: { about: 'GET by id, against bare node:http with the same bytes', run: benchGet },
  lifecycles: { about: 'create, running, stop, delete: complete sandbox lifecycles per second', run: benchLifecycles },
  start: { about: 'create until running, against a script of the same steps', run: benchStart },
  starts: { about: 'real sandboxes started per second, against the runtime alone', run: benchStarts },
  list: { about: 'a page by label among 100,000 sandboxes', run: benchList },
  hostile: {
    about: 'what one organization meets while another client does its worst, against a quiet moment',
    run: benchHostile,
  },
  million: { about: 'get, create and pages among a million sandboxes, against 10,000', run: benchMillion },
  fleet: { about: '10,000 workers and 100,000 runs: placement, and the load while nothing changes', run: benchFleet },
  usage: { about: 'usage reports on a million runs, against bare queries for the same rows', run: benchUsage },
  events: { about: 'a page of events among a million, against one event by its id', run: benchEvents },
  streams: { about: 'events that arrive at 1,000 open streams, against one', run: benchEventStreams },
  webhooks: {
    about: 'events that are delivered to 50 webhooks, against bare posts to the same receiver',
    run: benchWebhooks,
  },
  volume: { about: 'a file into a volume and out of it, against a plain copy', run: benchVolume },
  snapshots: {
    about: 'snapshots of running sandboxes, against tar, and forks against plain creates',
    run: benchSnapshots,
  },
  metrics: { about: 'what it costs to sample and keep what sandboxes use', run: benchMetrics },
  egress: {
    about: 'ways out of a sandbox: by address, by name, with intercepted TLS; against a bare socket',
    run: benchEgress,
  },
  dashboard: { about: 'the dashboard in a browser: its size, its list, its terminal', run: benchDashboard },
  preview: { about: 'requests to a port of a sandbox, against a bare proxy', run: benchPreview },
  ssh: { about: 'a command over SSH, against sshd in a network namespace', run: benchSsh },
  memory: { about: 'the memory of the idle server', run: benchMemory },
  exec: { about: "a command in a sandbox, against the runtime's own exec", run: benchExec },
  stream: { about: 'output and files through the command channel, against a bare WebSocket echo', run: benchStream },
  waits: { about: '10,000 requests that wait at once, and how soon they are answered', run: benchWaits },
  channels: { about: '200 channels at once, and the memory of an idle one', run: benchChannels },
}

// The server ends when this process exits (support/cloud.ts). Therefore a signal must end this process cleanly.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => process.exit(1))

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { help: { type: 'boolean', short: 'h' }, list: { type: 'boolean' }, json: { type: 'string' } },
})
const unknown = positionals.filter((name) => !(name in BENCHMARKS))
if (values.help === true || values.list === true || unknown.length > 0) {
  for (const name of unknown) process.stdout.write(`there is no benchmark '${name}'\n`)
  process.stdout.write('npm run bench [-- NAME… --json FILE]\n')
  for (const [name, { about }] of Object.entries(BENCHMARKS)) process.stdout.write(`  ${name.padEnd(10)} ${about}\n`)
  process.exitCode = unknown.length > 0 ? 2 : 0
} else await runAll(positionals.length > 0 ? positionals : Object.keys(BENCHMARKS))

/** Runs the benchmarks in order. A missed goal is a result. Only a failed measurement sets exit code 1. */
async function runAll(names: readonly string[]): Promise<void> {
  const machine = describeMachine()
  process.stdout.write(`${machine}\n`)
  const rows: ResultRow[] = []
  for (const name of names) {
    const benchmark = BENCHMARKS[name]
    if (benchmark === undefined) continue
    process.stdout.write(`\n${name}: ${benchmark.about}\n`)
    try {
      const found = await benchmark.run()
      for (const row of found) process.stdout.write(`  ${lineOf(row)}\n`)
      rows.push(...found)
    } catch (error) {
      process.stdout.write(`  FAILED: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`)
      process.exitCode = 1
    }
  }
  process.stdout.write(`\n${renderTable(rows)}\n`)
  if (values.json !== undefined) await writeFile(values.json, `${JSON.stringify({ machine, rows }, null, 2)}\n`)
}

function lineOf(row: ResultRow): string {
  const ratio = row.ratio === null ? '' : `; ratio ${row.ratio.toFixed(2)}`
  const goal = row.goal === '' ? '' : ` (goal ${row.goal}: ${formatVerdict(row)})`
  return `${row.what}: ${row.measured}${row.limit === '' ? '' : ` against ${row.limit}`}${ratio}${goal}`
}
