/** What would help a sandbox, by the cause of its state. Each table has an entry for every value, so that none lacks words. */
import type { CauseCode } from './lifecycle.ts'
import type { RunOutcome, StartFailure } from './run.ts'

/** The names that an advice contains. */
export type AdviceNames = {
  /** The name, the slug and the organization's slug of the sandbox. */
  readonly name: string
  readonly slug: string
  readonly org: string
  /** The worker of the latest run, or the one that stores the disk. */
  readonly worker: string | null
}

type Advice = (names: AdviceNames) => readonly string[]

const start: Advice = ({ name }) => [`start it again: msb start ${name}`]
const logs: Advice = ({ slug }) => [`read its last lines: sandyard logs ${slug} --tail 50`]
const worker: Advice = () => ['see the state of the workers: sandyard worker list']

/** What helps a sandbox that was stopped for a cause. */
export const ADVICE_OF_CAUSE: Readonly<Record<CauseCode, Advice>> = {
  requested: start,
  deleted: () => ['nothing: create it again'],
  placement: worker,
  worker_report: (names) => [...logs(names), ...start(names)],
  workload_ended: (names) => [...logs(names), ...start(names)],
  idle_timeout: (names) => [...start(names), 'for the next one, create it with a longer lifecycle.idle_timeout_secs'],
  max_duration: (names) => [...start(names), 'for the next one, create it with a longer lifecycle.max_duration_secs'],
  max_uptime: (names) => [
    ...start(names),
    `raise the limit: sandyard quota set max_uptime_minutes_per_sandbox MINUTES --org ${names.org}`,
  ],
  pool_exhausted: ({ org }) => [
    `see and raise the included hours: sandyard quota show --org ${org}`,
    'or wait for the next month (UTC)',
  ],
  suspended: (names) => [`end the suspension: sandyard org resume ${names.org}`, ...start(names)],
  drained: (names) => [
    names.worker === null
      ? 'end the drain: sandyard worker resume WORKER'
      : `end the drain: sandyard worker resume ${names.worker}`,
    ...start(names),
  ],
  restart_policy: (names) => [...logs(names), `end the restarts: msb stop ${names.name}`],
  worker_lost: (names) => [
    `look at the machine of the worker${names.worker === null ? '' : ` '${names.worker}'`}: sandyard worker list`,
    ...start(names),
  ],
  restored: start,
}

/** What helps a sandbox whose run ended in a way. */
export const ADVICE_OF_OUTCOME: Readonly<Record<RunOutcome['kind'], Advice>> = {
  exited: logs,
  signalled: logs,
  out_of_memory: () => ['create it with more resources.memory_mib, or let its workload use less'],
  disk_full: (names) => [
    'delete sandboxes or files of volumes that nobody needs, or give the machine more space: sandyard doctor, on its machine',
    ...start(names),
  ],
  stopped: start,
  start_failed: () => [],
  lost: worker,
}

/** What helps a sandbox whose start failed for a reason. */
export const ADVICE_OF_START_FAILURE: Readonly<Record<StartFailure, Advice>> = {
  image: () => ['check the name and the platform of the image, and create the sandbox with one that exists'],
  registry: ({ org }) => [
    'check that the registry is reachable from the worker, and in SANDYARD_REGISTRIES_ALLOWED if it is private',
    `check the credentials: sandyard registry list --org ${org}`,
  ],
  patch: () => ['create it with other patches, or another image'],
  mount: () => ['check the paths and volumes of its mounts'],
  config: () => ['create it with another specification: the message names the field'],
  network: () => ['check the worker: sandyard doctor, on its machine'],
  disk: () => ['check the free space of the worker: sandyard doctor, on its machine'],
  runtime: () => ['check the worker: sandyard doctor, on its machine'],
  host: () => ['check the worker: sandyard doctor, on its machine'],
  cancelled: start,
}
