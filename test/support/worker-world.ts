import { Registry } from 'prom-client'
import type { WebSocket } from 'ws'
import type { StreamPurpose } from '../../src/contract/workers/worker-protocol.ts'
import { createSandbox } from '../../src/control/sandboxes/create-sandbox.ts'
import { ticketTopic } from '../../src/control/topics.ts'
import { registerWorker } from '../../src/control/workers/worker-join.ts'
import type { SandboxId, WorkerId } from '../../src/domain/ids.ts'
import type { Sandbox } from '../../src/domain/sandboxes/sandbox.ts'
import type { SandboxSpec } from '../../src/domain/spec/spec.ts'
import { callWith } from '../../src/http/requests/call-use-case.ts'
import { PEERS_ARE_CLIENTS } from '../../src/http/requests/client-address.ts'
import { DEFAULT_SERVER_SETTINGS, makeServer } from '../../src/http/server/server.ts'
import { makeOpenStream } from '../../src/http/workers/open-stream.ts'
import { makeStandByRoute, makeStreamRoute, makeSyncRoute } from '../../src/http/workers/worker-routes.ts'
import { systemClock, type Clock } from '../../src/lib/clock.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { runLoops } from '../../src/loops/loop.ts'
import { makeSnapshotsLoop } from '../../src/loops/make-snapshots.ts'
import { makePlacePendingLoop } from '../../src/loops/place-pending.ts'
import { makeRelay, type Relay } from '../../src/relay/relay.ts'
import { runAgent } from '../../src/worker/agent/agent.ts'
import { makeControlPlane, type ControlPlane } from '../../src/worker/agent/control-plane.ts'
import { NO_DISK_RESERVE, type DiskReserve } from '../../src/worker/disk-reserve.ts'
import type { Driver } from '../../src/worker/drivers/driver.ts'
import { type SandboxLogs, makeNoLogs } from '../../src/worker/logs/logs.ts'
import { makeNoMetrics, type SandboxMetrics } from '../../src/worker/metrics/sandbox-metrics.ts'
import { makeOpenFolderFiles } from '../../src/worker/volumes/open-folder-files.ts'
import { makeVolumeFiles } from '../../src/worker/volumes/volume-files.ts'
import type { VolumeStorage } from '../../src/worker/volumes/volume-storage.ts'
import { makeTestControl, type TestControl } from './control.ts'
import { PLAIN_SPEC } from './spec.ts'
import { makeFolderStorage, TEST_UID_SHIFT } from './volume-storage.ts'

/** A control plane that places runs and serves HTTP, with workers that a test adds. */
export type WorkerWorld = {
  readonly control: TestControl
  readonly relay: Relay<StreamPurpose, WebSocket>
  readonly worker_id: WorkerId
  readonly url: string
  readonly credential: string
  /** Stops the HTTP server, so that workers can't reach it. `comeBack` starts it on the same port. */
  goAway(): Promise<void>
  comeBack(): Promise<void>
  /** Connects the worker to this control plane over HTTP. */
  connect(): ControlPlane
  /** Starts the worker's agent with a driver. The returned function stops the agent and leaves the driver open. */
  runWorker(driver: Driver, options?: RunWorkerOptions): () => Promise<void>
  create(spec?: Partial<SandboxSpec>): Promise<Sandbox>
  /** Reads the status of a sandbox from its row, even if the sandbox is no longer visible to clients. */
  statusOf(id: SandboxId): Promise<{ readonly status: string; readonly last_failure_message: string | null }>
  close(): Promise<void>
}

export type RunWorkerOptions = {
  readonly clock?: Clock
  readonly controlPlane?: ControlPlane
  readonly fencesItself?: boolean
  readonly storage?: VolumeStorage
  readonly logs?: SandboxLogs
  readonly metrics?: SandboxMetrics
  readonly diskReserve?: Pick<DiskReserve, 'measure'>
}

const CREDENTIAL = 'the-credential-of-a-worker-of-a-test'

/** Creates a world with its own database and one registered worker, which has never synced. */
export async function makeWorkerWorld(): Promise<WorkerWorld> {
  const relay = makeRelay<StreamPurpose, WebSocket>({
    newTicket: () => systemRandom.bytes(24).toString('base64url'),
    onTicket: (worker) => {
      control.deps.notifications.publish([ticketTopic(worker)])
    },
  })
  const control: TestControl = await makeTestControl({
    openStream: makeOpenStream(relay),
    dialChannel: ({ worker_id, purpose }, signal) => relay.open(worker_id, purpose, signal),
  })
  const { deps, caller } = control
  const worker_id = await registerWorker(deps, { name: 'w1', credential: CREDENTIAL })
  const stopping = new AbortController()
  const nothing = (): Promise<void> => Promise.resolve()
  const acquireLeadership = () =>
    Promise.resolve({ lost: stopping.signal, fence: nothing, [Symbol.asyncDispose]: nothing })
  const loops = runLoops(
    { clock: systemClock, log: deps.log, notifications: deps.notifications, acquireLeadership },
    () => [makePlacePendingLoop(deps), makeSnapshotsLoop(deps)],
    stopping.signal,
  )
  const gate = { control: deps, clients: PEERS_ARE_CLIENTS }
  const serve = () =>
    makeServer({
      call: callWith(deps),
      log: deps.log,
      uuids: deps.uuids,
      metrics: new Registry(),
      unreadyReasons: () => Promise.resolve([]),
      settings: DEFAULT_SERVER_SETTINGS,
      signIn: { oidc: null },
      plugins: [makeSyncRoute({ ...gate, tickets: relay, replicas: { urls: [] } })],
      upgrades: [makeStandByRoute({ ...gate, relay }), makeStreamRoute({ ...gate, relay })],
    })
  let server = serve()
  const url = await server.listen({ host: '127.0.0.1', port: 0 })
  const connect = (): ControlPlane => makeControlPlane({ url, credential: CREDENTIAL })
  const [folders, removeFolders] = await makeFolderStorage()
  const lives = new Set<() => Promise<void>>()

  return {
    control,
    relay,
    worker_id,
    url,
    credential: CREDENTIAL,
    connect,
    async goAway() {
      await server.close()
    },
    async comeBack() {
      server = serve()
      await server.listen({ host: '127.0.0.1', port: Number(new URL(url).port) })
    },
    runWorker(
      driver,
      {
        clock = systemClock,
        controlPlane = connect(),
        fencesItself = false,
        storage = folders,
        logs = makeNoLogs(),
        metrics = makeNoMetrics(),
        diskReserve = NO_DISK_RESERVE,
      } = {},
    ) {
      const ending = new AbortController()
      const life = deps.uuids.next()
      const log = makeLog('silent')
      const done = runAgent(
        {
          worker_id,
          incarnation: life,
          driver,
          storage,
          storageSampleMs: 60_000,
          openFiles: makeOpenFolderFiles(storage, (root) =>
            makeVolumeFiles({ root, uidShift: TEST_UID_SHIFT, random: systemRandom }),
          ),
          logs,
          metrics,
          controlPlane,
          diskReserve,
          clock,
          log,
          fencesItself,
        },
        ending.signal,
      )
      const end = async (): Promise<void> => {
        lives.delete(end)
        ending.abort(new Error('the life of this worker is over'))
        await done
      }
      lives.add(end)
      return end
    },
    create: (spec = {}) =>
      createSandbox(deps, caller, {
        spec: { ...PLAIN_SPEC, ...spec },
        name: null,
        slug: null,
        registry: { mode: 'auto' },
        start: true,
        waitMs: null,
        signal: stopping.signal,
      }),
    async statusOf(id) {
      const { rows } = await deps.db.asSystem((q) =>
        q.query<{ readonly status: string; readonly last_failure_message: string | null }>({
          text: 'SELECT status, last_failure_message FROM sandboxes WHERE id = $1',
          values: [id],
        }),
      )
      const [row] = rows
      if (row === undefined) throw new Error(`there is no sandbox ${id}`)
      return row
    },
    async close() {
      await Promise.all([...lives].map((end) => end()))
      stopping.abort(new Error('the test is over'))
      await server.close()
      await loops
      await control.close()
      removeFolders()
    },
  }
}
