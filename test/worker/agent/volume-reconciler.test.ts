import assert from 'node:assert/strict'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Readable, type Duplex } from 'node:stream'
import { after, afterEach, before, beforeEach, test } from 'node:test'
import { createWebSocketStream, type WebSocket } from 'ws'
import type {
  StreamTicket,
  SyncAnswer,
  SyncRequest,
  DesiredVolume,
} from '../../../src/contract/workers/worker-protocol.ts'
import { makeVolumeClient } from '../../../src/control/volumes/volume-client.ts'
import { asId, type WorkerId } from '../../../src/domain/ids.ts'
import { interruptibleSleep, systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { makeUuids } from '../../../src/lib/uuid.ts'
import { runAgent } from '../../../src/worker/agent/agent.ts'
import { makeSimulatedDriver } from '../../../src/worker/drivers/simulated.ts'
import { makeSimulatedWorld } from '../../../src/worker/drivers/simulated-world.ts'
import { makeNoLogs } from '../../../src/worker/logs/logs.ts'
import { makeNoMetrics } from '../../../src/worker/metrics/sandbox-metrics.ts'
import { makeOpenFolderFiles } from '../../../src/worker/volumes/open-folder-files.ts'
import { makeVolumeFiles } from '../../../src/worker/volumes/volume-files.ts'
import type { VolumeStorage } from '../../../src/worker/volumes/volume-storage.ts'
import { rejectOnAbort } from '../../support/reject-on-abort.ts'
import { socketPair } from '../../support/channel.ts'
import { makeFolderStorage, newVolume, TEST_UID_SHIFT } from '../../support/volume-storage.ts'
import { waitUntil } from '../../support/wait.ts'

// Tests of how the worker reports, caps and deletes volumes. The volumes are plain folders, and the test simulates the control
// plane.

let storage: VolumeStorage
let removeFolders: () => void
before(async () => {
  ;[storage, removeFolders] = await makeFolderStorage()
})
after(() => removeFolders())

type Wish = Pick<SyncAnswer, 'volumes_version' | 'volumes' | 'discard_volumes' | 'streams'>
const NOTHING: Wish = { volumes_version: 'none', volumes: [], discard_volumes: [], streams: [] }

let wish: Wish
let reports: SyncRequest[]
let clients: Duplex[]
let sampleMs: number
let isLosingAnswers: boolean
let end: () => Promise<void>
beforeEach(() => {
  wish = NOTHING
  reports = []
  clients = []
  sampleMs = 60_000
  isLosingAnswers = false
  end = () => Promise.resolve()
})
afterEach(() => end())

/** Answers a changed report at once and an unchanged one after a delay, like the real control plane. */
async function sync(report: SyncRequest, signal: AbortSignal): Promise<SyncAnswer> {
  reports.push(report)
  const isNews = (): boolean =>
    wish.volumes_version !== report.known_volumes_version ||
    wish.discard_volumes.length > 0 ||
    wish.streams.some(({ ticket }) => !report.dialled_tickets.includes(ticket))
  for (let left = 100; left > 0 && !isNews() && !signal.aborted; left--)
    await interruptibleSleep(systemClock, 5, signal)
  if (signal.aborted || isLosingAnswers) throw new Error('cut off')
  const volumes = wish.volumes_version === report.known_volumes_version ? null : wish.volumes
  return { generation: null, desired_version: 'none', desired_runs: [], discard_sandboxes: [], ...wish, volumes }
}

async function dial(): Promise<WebSocket> {
  const [control, worker] = await socketPair()
  clients.push(createWebSocketStream(control))
  return worker
}

function live(over: Partial<VolumeStorage> = {}): void {
  const ending = new AbortController()
  const done = runAgent(
    {
      worker_id: asId<WorkerId>('worker'),
      incarnation: makeUuids(systemClock, systemRandom).next(),
      driver: makeSimulatedDriver({ world: makeSimulatedWorld(), clock: systemClock }),
      storage: { ...storage, ...over },
      storageSampleMs: sampleMs,
      logs: makeNoLogs(),
      metrics: makeNoMetrics(),
      openFiles: makeOpenFolderFiles(storage, (root) =>
        makeVolumeFiles({ root, uidShift: TEST_UID_SHIFT, random: systemRandom }),
      ),
      controlPlane: {
        sync,
        dial,
        fetchSnapshot: () => Promise.reject(new Error('there are no snapshots')),
        releaseBytes: () => undefined,
        standBy: rejectOnAbort,
      },
      clock: systemClock,
      log: makeLog('silent'),
      fencesItself: false,
    },
    ending.signal,
  )
  end = async () => {
    ending.abort(new Error('the life of this worker is over'))
    await done
  }
}

/**
 * The used bytes of a volume in the last report with volumes. Null if it isn't in that report, undefined without a
 * report.
 */
function toldOf({ volume_id }: DesiredVolume): number | null | undefined {
  const told = reports.findLast(({ volumes }) => volumes !== null)?.volumes
  return told?.find((one) => one.volume_id === volume_id)?.used_bytes ?? (told === undefined ? undefined : null)
}

async function put(volume: DesiredVolume, path: string, content: string): Promise<void> {
  const ticket: StreamTicket = { kind: 'volume', ticket: path, volume }
  wish = { ...wish, streams: [ticket] }
  const stream = await waitUntil(() => clients[0])
  await makeVolumeClient(() => Promise.resolve(stream)).write(path, Readable.from([content], { objectMode: false }))
  wish = { ...wish, streams: [] }
}

test('the first report describes the storage and lists all volumes, and later reports contain only changes', async () => {
  const volume = newVolume()
  writeFileSync(join(await storage.open(volume), 'file'), 'x'.repeat(100_000))
  live()
  await waitUntil(() => reports.length > 2)
  assert.deepEqual(reports[0]?.storage, storage.report)
  assert.ok((reports[0].volumes?.find(({ volume_id }) => volume_id === volume.volume_id)?.used_bytes ?? 0) >= 100_000)
  assert.equal(reports[2]?.volumes, null)
})

test('volumes are measured from time to time', async () => {
  const volume = newVolume()
  const path = await storage.open(volume)
  sampleMs = 100
  live()
  await waitUntil(() => toldOf(volume) !== undefined)
  writeFileSync(join(path, 'file'), 'x'.repeat(100_000))
  await waitUntil(() => (toldOf(volume) ?? 0) >= 100_000)
})

test('a measurement is reported until it is answered', async () => {
  isLosingAnswers = true
  live()
  await waitUntil(() => reports.length > 1)
  assert.notEqual(reports[1]?.volumes, null)
})

test('caps are applied once, and the worker requests caps again that it failed to apply', async () => {
  const [good, bad] = [newVolume(), newVolume()]
  const limited: DesiredVolume[] = []
  live({
    applyCaps(volume) {
      limited.push(volume)
      return volume === bad ? Promise.reject(new Error('the machine is busy')) : Promise.resolve()
    },
  })
  wish = { ...NOTHING, volumes_version: 'first', volumes: [good] }
  await waitUntil(() => reports.some(({ known_volumes_version }) => known_volumes_version === 'first'))
  await waitUntil(() => limited.length > 0)
  wish = { ...NOTHING, volumes_version: 'second', volumes: [bad, good] }
  await waitUntil(() => reports.some(({ known_volumes_version }) => known_volumes_version === 'second'))
  assert.ok(reports.length < 20, `${String(reports.length)} syncs while caps fail`)
  await waitUntil(() => limited.length === 5)
  assert.deepEqual(limited, [good, bad, good, bad, good])
})

test('a volume is deleted on request, and the deletion is reported at once', async () => {
  const volume = newVolume()
  const path = await storage.open(volume)
  sampleMs = 3_600_000 // the next sample comes after the end of this test
  live()
  await waitUntil(() => typeof toldOf(volume) === 'number')
  wish = { ...NOTHING, discard_volumes: [volume] }
  await waitUntil(() => toldOf(volume) === null)
  assert.ok(!existsSync(path))
})

test('a failed deletion is retried, but not in a tight loop, and the worker syncs meanwhile', async () => {
  const volume = newVolume()
  let tries = 0
  live({
    remove(key) {
      tries += 1
      if (tries <= 2) return Promise.reject(new Error('it is mounted'))
      wish = NOTHING // later answers request nothing; the answer to the current sync may still request the deletion
      return storage.remove(key)
    },
  })
  const path = await storage.open(volume)
  wish = { ...NOTHING, discard_volumes: [volume] }
  await waitUntil(() => !existsSync(path))
  assert.equal(tries, 3)
  assert.ok(reports.length > 2 && reports.length < 20, `${String(reports.length)} syncs while a deletion fails`)
})

test('a file from a stream is written to the volume, and the volume’s use is reported within seconds', async () => {
  const volume = newVolume()
  live()
  await waitUntil(() => reports.length > 1)
  await put(volume, 'folder/file', 'x'.repeat(100_000))
  const path = await storage.open(volume)
  assert.equal(readFileSync(join(path, 'folder/file'), 'utf8').length, 100_000)
  await waitUntil(() => (toldOf(volume) ?? 0) >= 100_000, 2_500)
})

test('a stream to a volume that can’t be opened is closed, and the worker goes on', async () => {
  const volume = newVolume({ capacity_bytes: 1 }) // plain folders refuse a cap
  live()
  wish = { ...NOTHING, streams: [{ kind: 'volume', ticket: 't', volume }] }
  const stream = await waitUntil(() => clients[0])
  await waitUntil(() => stream.destroyed || stream.readableEnded || !stream.resume().readable)
  wish = NOTHING
  const before = reports.length
  await waitUntil(() => reports.length > before)
})

test('the end of a worker closes the streams to volumes', async () => {
  live()
  wish = { ...NOTHING, streams: [{ kind: 'volume', ticket: 't', volume: newVolume() }] }
  const stream = await waitUntil(() => clients[0])
  await end()
  await waitUntil(() => stream.destroyed || !stream.resume().readable)
})
