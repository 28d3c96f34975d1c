import type { ResultRow } from './support/report.ts'

/** What a benchmark needs to know about its run. */
export type BenchmarkRun = {
  /** True in `quick`: fewer samples. */
  readonly isQuick: boolean
  /** Gets the picture of the phases of a create, as SVG. */
  readonly onPicture: (svg: string) => Promise<void>
}

type Benchmark = {
  readonly about: string
  /** How long it takes on 2 cores with nothing else running, in seconds. A limited run leaves out what does not fit. */
  readonly usualSeconds: number
  /** The same with the fewer samples of `quick`. Absent: it has no fewer samples. */
  readonly quickSeconds?: number
  /** Whether it runs only if it is named. */
  readonly isByNameOnly?: true
  /** Loads its module and runs it. */
  readonly run: (run: BenchmarkRun) => Promise<readonly ResultRow[]>
}

/** The benchmarks of a run, and how long it may take. */
export type Plan = { readonly names: readonly string[]; readonly limitSeconds: number }

/** All benchmarks, the most important first. */
export const BENCHMARKS: Readonly<Record<string, Benchmark>> = {
  phases: {
    about: 'where the time goes from a create to the end of its first command',
    usualSeconds: 40,
    quickSeconds: 22,
    run: async ({ isQuick, onPicture }) => (await import('./phases.ts')).benchPhases(onPicture, isQuick),
  },
  first: {
    about: 'create to first command by the public client, alone and 20 at once',
    usualSeconds: 90,
    quickSeconds: 45,
    run: async ({ isQuick }) => (await import('./first-command.ts')).benchFirstCommand(isQuick),
  },
  start: {
    about: 'create until running, against a script of the same steps',
    usualSeconds: 55,
    run: async () => (await import('./start.ts')).benchStart(),
  },
  starts: {
    about: 'real sandboxes started per second, against the runtime alone',
    usualSeconds: 50,
    run: async () => (await import('./starts.ts')).benchStarts(),
  },
  compare: {
    about: 'create, exec and starts a second, beside docker and podman',
    usualSeconds: 120,
    run: async () => (await import('./compare.ts')).benchCompare(),
  },
  exec: {
    about: "a command in a sandbox, against the runtime's own exec",
    usualSeconds: 30,
    run: async () => (await import('./exec.ts')).benchExec(),
  },
  creates: {
    about: 'durable creates per second, against pgbench committing the same rows',
    usualSeconds: 60,
    run: async () => (await import('./creates.ts')).benchCreates(),
  },
  lifecycles: {
    about: 'create, running, stop, delete: complete sandbox lifecycles per second',
    usualSeconds: 45,
    run: async () => (await import('./lifecycles.ts')).benchLifecycles(),
  },
  get: {
    about: 'GET by id, against bare node:http with the same bytes',
    usualSeconds: 40,
    run: async () => (await import('./get.ts')).benchGet(),
  },
  list: {
    about: 'a page by label among 100,000 sandboxes',
    usualSeconds: 60,
    run: async () => (await import('./list.ts')).benchList(),
  },
  memory: {
    about: 'the memory of an idle server from a fresh clone, and how long its starts take',
    usualSeconds: 130,
    run: async () => (await import('./memory.ts')).benchMemory(),
  },
  processes: {
    about: 'requests by two server processes against one, by processor time',
    usualSeconds: 110,
    run: async () => (await import('./processes.ts')).benchProcesses(),
  },
  channels: {
    about: '200 channels at once, and the memory of an idle one',
    usualSeconds: 30,
    run: async () => (await import('./channels.ts')).benchChannels(),
  },
  stream: {
    about: 'output and files through the command channel, against a bare WebSocket echo',
    usualSeconds: 60,
    run: async () => (await import('./stream.ts')).benchStream(),
  },
  volume: {
    about: 'a file into a volume and out of it, against a plain copy',
    usualSeconds: 60,
    run: async () => (await import('./volume.ts')).benchVolume(),
  },
  preview: {
    about: 'requests to a port of a sandbox, against a bare proxy',
    usualSeconds: 60,
    run: async () => (await import('./preview.ts')).benchPreview(),
  },
  ssh: {
    about: 'a command over SSH, against sshd in a network namespace',
    usualSeconds: 40,
    run: async () => (await import('./ssh.ts')).benchSsh(),
  },
  egress: {
    about: 'ways out of a sandbox: by address, by name, with intercepted TLS; against a bare socket',
    usualSeconds: 90,
    run: async () => (await import('./egress.ts')).benchEgress(),
  },
  events: {
    about: 'a page of events among a million, against one event by its id',
    usualSeconds: 90,
    run: async () => (await import('./events.ts')).benchEvents(),
  },
  streams: {
    about: 'events that arrive at 1,000 open streams, against one',
    usualSeconds: 50,
    run: async () => (await import('./event-streams.ts')).benchEventStreams(),
  },
  webhooks: {
    about: 'events that are delivered to 50 webhooks, against bare posts to the same receiver',
    usualSeconds: 60,
    run: async () => (await import('./webhooks.ts')).benchWebhooks(),
  },
  waits: {
    about: '10,000 requests that wait at once, and how soon they are answered',
    usualSeconds: 90,
    run: async () => (await import('./waits.ts')).benchWaits(),
  },
  hostile: {
    about: 'what one organization meets while another client does its worst, against a quiet moment',
    usualSeconds: 570,
    run: async () => (await import('./hostile.ts')).benchHostile(),
  },
  usage: {
    about: 'usage reports on a million runs, against bare queries for the same rows',
    usualSeconds: 150,
    run: async () => (await import('./usage.ts')).benchUsage(),
  },
  snapshots: {
    about: 'snapshots of running sandboxes, against tar, and forks against plain creates',
    usualSeconds: 150,
    run: async () => (await import('./snapshots.ts')).benchSnapshots(),
  },
  fleet: {
    about: '10,000 workers and 100,000 runs: placement, and the load while nothing changes',
    usualSeconds: 180,
    run: async () => (await import('./fleet.ts')).benchFleet(),
  },
  metrics: {
    about: 'what it costs to sample and keep what sandboxes use',
    usualSeconds: 150,
    run: async () => (await import('./metrics.ts')).benchMetrics(),
  },
  kubernetes: {
    about: 'sandboxes as Pods of a real cluster, against Pods made by its API',
    usualSeconds: 200,
    quickSeconds: 120,
    run: async ({ isQuick }) => (await import('./kubernetes.ts')).benchKubernetes(isQuick),
  },
  dashboard: {
    about: 'the dashboard in a browser: its size, its list, its terminal',
    usualSeconds: 60,
    run: async () => (await import('./dashboard.ts')).benchDashboard(),
  },
  million: {
    about: 'get, create and pages among a million sandboxes, against 10,000',
    usualSeconds: 240,
    run: async () => (await import('./million.ts')).benchMillion(),
  },
  thousand: {
    about:
      'a thousand real sandboxes at once: idle, a list and a command, against ten; only by name; needs 20 GiB and 8 minutes',
    usualSeconds: 420,
    isByNameOnly: true,
    run: async () => (await import('./thousand.ts')).benchThousand(),
  },
}

const byDefault = Object.entries(BENCHMARKS).filter(([, { isByNameOnly }]) => isByNameOnly !== true)
export const FULL: Plan = { names: byDefault.map(([name]) => name), limitSeconds: 20 * 60 }
export const QUICK: Plan = { names: ['phases', 'first', 'exec', 'get', 'creates'], limitSeconds: 3 * 60 }
