import { readFile } from 'node:fs/promises'
import { text } from 'node:stream/consumers'
import { Registry } from 'prom-client'
import type { Config } from '../../config.ts'
import type { SyncAnswer } from '../../contract/workers/worker-protocol.ts'
import { rateLimitedLog } from '../../lib/rate-limited-log.ts'
import { isLoopbackName } from '../../domain/network/loopback-name.ts'
import { isJoinToken, isServiceAccountToken, pinOfJoinToken } from '../../domain/orgs/api-key.ts'
import { RENEW_DEADLINE_MS } from '../../domain/workers/lease.ts'
import { systemClock } from '../../lib/clock.ts'
import { openLog } from '../open-log.ts'
import { systemRandom } from '../../lib/random.ts'
import { lockDataFolder } from '../../store/embedded/data-lock.ts'
import { makeControlPlane, WorkerRemoved, type ControlPlane } from '../../worker/agent/control-plane.ts'
import { tuneMemory } from '../tune-memory.ts'
import { withSyncMetrics } from '../metrics/machine-metrics.ts'
import { listenForMetrics } from './metrics-listener.ts'
import { beginIncarnation } from '../../worker/agent/incarnation.ts'
import { UsageError, type Call } from '../command.ts'
import { ensureDataFolder, openDataFolder } from '../server/data-folder.ts'
import { mountDataFolder } from '../server/data-mount.ts'
import { describeError, joinFleet, type JoinOptions } from './join-fleet.ts'
import {
  loadDemoImage,
  closeWorkerHost,
  runWorkerAgent,
  openWorkerHost,
  stopSandboxesAndReport,
  waitForSandboxes,
  type WorkerHost,
} from './worker-host.ts'
import { printStatus } from '../print-status.ts'
import { printUnknownSettings } from '../print-unknown-settings.ts'
import { requireHostReserve } from './require-host-reserve.ts'
import { incarnationFilePath } from './worker-storage.ts'
import { listenForStopSignals, waitForAbort } from '../stop-signals.ts'
import { deleteIdentity, readIdentity, writeIdentity, type JoinedIdentity } from './worker-identity.ts'

/**
 * Joins a control plane, unless an earlier start did, and runs sandboxes for it until SIGTERM. Resolves with `removed`
 * when an operator has removed this worker.
 */
export async function runWorker(call: Call): Promise<'stopped' | 'removed'> {
  const { config: given } = call
  requireHostReserve(given)
  const log = rateLimitedLog(openLog(given), systemClock)
  const token = await readJoinToken(call)
  const signal = listenForStopSignals(given)
  await ensureDataFolder(given.dataDir)
  using _lock = lockDataFolder(given.dataDir)
  const origin = await resolveOrigin(call, token)
  const folder = await openDataFolder(given.dataDir, systemRandom, given.secretKey)
  printStatus(`data folder: ${given.dataDir}`)
  printUnknownSettings(process.env)
  await using mounted = await mountDataFolder(folder)
  const config = { ...given, dataDir: mounted.path }
  // Open the host before joining: a machine that can't run sandboxes must not use up the token.
  const metrics = new Registry()
  const host = await openWorkerHost({ config, folder, log }, { fencesItself: true, metrics })
  try {
    await using _listener = await listenForMetrics(config, metrics)
    const joined = origin.kind === 'joined' ? origin : await joinFleet(config.dataDir, origin.join, signal)
    if (joined !== null) await runUntilStopped(config, { host, joined, metrics }, signal)
    return 'stopped'
  } catch (error) {
    if (!(error instanceof WorkerRemoved)) throw error
    await deleteIdentity(config.dataDir)
    printStatus(`${error.message}: its sandboxes are destroyed. To join as a new worker, start with a new join token`)
    return 'removed'
  } finally {
    await closeWorkerHost(config, host)
  }
}

/**
 * Reads the join token, and replaces the process title. Otherwise every user of the machine could read a token that was
 * passed on the command line.
 */
async function readJoinToken({ config, switches }: Call): Promise<string | null> {
  process.title = 'sandyard worker'
  if (!switches.has('token-stdin')) return config.joinToken ?? (await readTokenFile(config.joinTokenFile))
  const token = (await text(process.stdin)).trim()
  if (token === '') throw new UsageError('standard input must contain the join token, and it was empty')
  return token
}

async function readTokenFile(path: string | null): Promise<string | null> {
  if (path === null) return null
  const token = (await readFile(path, 'utf8')).trim()
  if (token === '')
    throw new UsageError(`${path} (SANDYARD_JOIN_TOKEN_FILE) must contain the join token, and it is empty`)
  return token
}

type WorkerOrigin =
  ({ readonly kind: 'joined' } & JoinedIdentity) | { readonly kind: 'new'; readonly join: JoinOptions }

/** Determines whether this machine has joined before. If it has, a newly given URL replaces the stored one. */
async function resolveOrigin({ config, texts }: Call, token: string | null): Promise<WorkerOrigin> {
  const known = await readIdentity(config.dataDir)
  const name = texts['name'] ?? config.workerName
  if (known?.joined === null || known === null) {
    if (config.join === null) throw new UsageError('--join URL (or SANDYARD_JOIN) must name the control plane')
    if (token === null)
      throw new UsageError(
        'a join token is needed, in SANDYARD_JOIN_TOKEN, SANDYARD_JOIN_TOKEN_FILE or by --token-stdin; `sandyard worker token` creates one',
      )
    if (!isJoinToken(token) && !isServiceAccountToken(token))
      throw new UsageError('the join token is incomplete or was changed: a token begins with syw_')
    requireEncryption(config.join, config)
    return { kind: 'new', join: { url: config.join, token, name } }
  }
  // A new token of the control plane replaces the pin, for example after it got another sealing key.
  const pin = token !== null && isJoinToken(token) ? pinOfJoinToken(token) : (known.joined.pin ?? null)
  const joined = { ...known.joined, url: config.join ?? known.joined.url, pin }
  requireEncryption(joined.url, config)
  if (name !== null && name !== joined.name)
    throw new UsageError(
      `this machine has already joined as '${joined.name}'; to use another name, remove that worker first`,
    )
  if (token !== null)
    printStatus(
      `this machine has already joined as '${joined.name}', so the join token only says which server to trust`,
    )
  if (joined.url !== known.joined.url || pin !== (known.joined.pin ?? null))
    await writeIdentity(config.dataDir, { ...known, joined })
  return { kind: 'joined', credential: known.credential, joined }
}

type JoinedWorker = { readonly host: WorkerHost; readonly joined: JoinedIdentity; readonly metrics: Registry }

async function runUntilStopped(
  config: Config,
  { host, joined: { credential, joined }, metrics }: JoinedWorker,
  signal: AbortSignal,
): Promise<void> {
  const log = rateLimitedLog(openLog(config), systemClock)
  const { url, worker_id, name, pin = null } = joined
  warnIfUnencrypted(url)
  printStatus(`worker '${name}' (${worker_id}) of ${url}`)
  await loadDemoImage({ config, log }, host)
  const incarnation = await beginIncarnation({ clock: systemClock, random: systemRandom }, incarnationFilePath(config))
  const controlPlane = printReachability(
    withSyncMetrics(metrics, {
      controlPlane: makeControlPlane({ url, credential, ...(pin === null ? {} : { pin: () => pin }) }),
      clock: systemClock,
    }),
    { url, endsSandboxes: host.renewDeadline !== null },
  )
  const ending = new AbortController()
  const leaving = new AbortController()
  const leavingRecorded = Promise.withResolvers<void>()
  const identity = {
    worker_id,
    incarnation,
    controlPlane,
    leaving: leaving.signal,
    onLeavingRecorded: leavingRecorded.resolve,
    onSynced: printDrainChanges(),
  }
  tuneMemory()
  const living = runWorkerAgent({ config, log }, { host, identity }, ending.signal)
  const stopped = waitForAbort(signal)
    .then(async () => {
      if (config.shutdown === 'drain') leaving.abort()
      await waitForSandboxes(config, host, leavingRecorded.promise)
      await stopSandboxesAndReport(config, host)
    })
    .finally(() => {
      ending.abort(signal.reason)
    })
  await Promise.all([living, Promise.race([living, stopped])])
}

/** Creates a function that prints a line when the first sync succeeds, and when a drain begins or ends. */
function printDrainChanges(): (answer: SyncAnswer) => void {
  let printed: string | null = null
  return ({ drain }) => {
    const until = drain?.deadline_at ?? null
    const state =
      drain === undefined
        ? 'ready: the control plane may place sandboxes here'
        : `draining: no new sandboxes are placed here; running ones continue ${until === null ? 'to their end' : `until ${until}`}`
    if (state !== printed) printStatus(state)
    printed = state
  }
}

/** Wraps a control plane so that a line is printed when it becomes unreachable, and when it answers again. */
function printReachability(
  controlPlane: ControlPlane,
  { url, endsSandboxes }: { readonly url: string; readonly endsSandboxes: boolean },
): ControlPlane {
  let isUnreachable = false
  return {
    ...controlPlane,
    async sync(request, signal, onRecorded) {
      try {
        const answer = await controlPlane.sync(request, signal, onRecorded)
        if (isUnreachable) printStatus(`${url} answers again`)
        isUnreachable = false
        return answer
      } catch (error) {
        if (!isUnreachable && !signal.aborted && !(error instanceof WorkerRemoved)) {
          isUnreachable = true
          const fence = endsSandboxes
            ? `Sandboxes here end after ${String(RENEW_DEADLINE_MS / 1000)} s without an answer`
            : 'Its sandboxes keep running'
          printStatus(`${url} can't be reached: ${describeError(error)}; retrying. ${fence}`)
        }
        throw error
      }
    },
  }
}

function isUnencrypted(url: string): boolean {
  const { protocol, hostname } = new URL(url)
  return protocol !== 'https:' && !isLoopbackName(hostname)
}

/** Refuses plain HTTP to another machine before anything is sent, unless the operator accepts it. */
function requireEncryption(url: string, { insecure }: Pick<Config, 'insecure'>): void {
  if (insecure || !isUnencrypted(url)) return
  throw new UsageError(
    `${url} is not encrypted: anyone on the network path could read credentials and secrets. ` +
      'Use https:// in --join (SANDYARD_JOIN), or accept the risk with --insecure (SANDYARD_INSECURE=true)',
  )
}

function warnIfUnencrypted(url: string): void {
  if (!isUnencrypted(url)) return
  printStatus(
    `WARNING: ${url} is not encrypted: anyone on the network path can read credentials and secrets. Use https`,
  )
}
