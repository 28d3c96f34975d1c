import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { ObservedRun, DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import type { RunId } from '../../../domain/ids.ts'
import { LIFECYCLE_LINES } from '../../logs/lifecycle-lines.ts'
import type { Driver } from '../driver.ts'
import { StartError } from '../../start-error.ts'
import { readBootId } from '../../processes/process-identity.ts'
import { makeRunWatch } from '../shared/run-watch.ts'
import { makeKeyedMutex } from '../../../lib/keyed-mutex.ts'
import { makeHeldRuns } from '../shared/held-runs.ts'
import { throwIfEnded, makeStartsInFlight } from '../shared/starts.ts'
import { connectAgent } from './agent-socket.ts'
import type { MicrosandboxDriverInput, VmContext } from './context.ts'
import { makeGuestHeartbeats } from './guest-heartbeats.ts'
import { assertHomeShortEnough, vmPaths } from './installation.ts'
import { openStoredSandboxes } from './stored-sandboxes.ts'
import { makeMsbCli } from './msb-cli.ts'
import { makeOutputCaptures } from './output-captures.ts'
import { probeVm } from './probe.ts'
import { recordEnd, releaseIfEnded, shutDownVm } from './release.ts'
import { startVm } from './start.ts'
import { stopWorkload } from './stop.ts'
import { adoptRuns } from './sweep.ts'
import { openVmImages } from './vm-images.ts'
import { observeVm } from './vm-phase.ts'
import { openVmRunRecords, type VmRunRecord } from './vm-records.ts'

/**
 * The driver for microVMs by the genuine runtime, one for each sandbox. It adopts what earlier workers left in `dir`: runs
 * that live go on, starts that were cut short are undone and forgotten. Rejects, in words, when `dir` can't be used.
 */
export async function makeMicrosandboxDriver(input: MicrosandboxDriverInput): Promise<Driver> {
  const context = await openContext(input)
  const { records, storedSandboxes, msb, home, captures, clock, log } = context
  const mutex = makeKeyedMutex()
  const heartbeats = makeGuestHeartbeats(clock)
  const starts = makeStartsInFlight(mutex, () => {
    watch.checkSoon()
  })
  await adoptRuns(context)

  const see = async (record: VmRunRecord, isBeingStarted: boolean): Promise<ObservedRun> => {
    const phase = await observeVm(context, record, isBeingStarted)
    const { run_id, sandbox_id, facts, idle_timeout_secs: timeoutSecs } = record
    const { runtime } = vmPaths(home, sandbox_id)
    const isIdle =
      phase.phase === 'running' && timeoutSecs !== null && (await heartbeats.isIdle(run_id, runtime, timeoutSecs))
    return { run_id, sandbox_id, ...phase, facts, ...(isIdle ? { is_idle_expired: true } : {}) }
  }
  const settleOne = (record: VmRunRecord): Promise<VmRunRecord> => releaseIfEnded(context, record)
  const { list, settleEnded: releaseEnded } = makeHeldRuns<VmRunRecord>({
    records,
    starts,
    mutex,
    see,
    settle: settleOne,
  })
  let told = ''
  const watch = makeRunWatch({
    list: async () => {
      const seen = await list()
      const idle = seen.flatMap((run) => (run.is_idle_expired === true ? [run.run_id] : [])).join(' ')
      if (idle !== told) {
        told = idle
        watch.notify()
      }
      return seen
    },
    releaseEnded,
    exitsFolder: records.endsFolder,
    clock,
    log,
  })

  const begin = async (wanted: DesiredRun, signal: AbortSignal): Promise<void> => {
    const known = await records.read(wanted.run_id)
    if (known !== null) return throwIfEnded(await observeVm(context, known, false))
    for (const other of await records.list()) {
      if (other.sandbox_id !== wanted.sandbox_id) continue
      await releaseEnded(other.run_id)
      if ((await records.read(other.run_id))?.is_released === false)
        throw new StartError('disk', 'another run of the sandbox still holds its disk')
    }
    await startVm(context, wanted, signal)
  }
  const end = async (run: RunId, graceMs: number): Promise<VmRunRecord | null> => {
    await starts.cancel(run)
    const record = await mutex.run(run, async () => {
      const read = await records.read(run)
      const settled = read === null ? null : await settleOne(read)
      if (settled === null || settled.is_released) return settled
      if (!settled.is_stop_requested) context.logs.writerOf(settled.sandbox_id).system(LIFECYCLE_LINES.stopRequested)
      const stopping: VmRunRecord = { ...settled, is_stop_requested: true }
      await records.write(stopping)
      watch.checkSoon()
      await stopWorkload(context, stopping, graceMs)
      await shutDownVm(context, stopping) // only then is it told to have ended
      return await recordEnd(context, stopping, { kind: 'stopped' })
    })
    watch.checkSoon()
    return record
  }

  return {
    name: 'microsandbox',
    probe: () => probeVm(context),
    list,
    listStored: () => storedSandboxes.list(),
    start: (wanted, signal) => starts.start(wanted.run_id, signal, (either) => begin(wanted, either)),
    async stop(run, graceMs) {
      await end(run, graceMs)
    },
    async remove(run) {
      const record = await end(run, 0)
      if (record === null) return
      await mutex.run(run, () => records.delete(run))
      heartbeats.forget(run)
      watch.checkSoon()
    },
    async discard(sandbox) {
      const held = (await records.list()).find((record) => record.sandbox_id === sandbox)
      if (held !== undefined) throw new Error(`sandbox ${sandbox} has run ${held.run_id}: remove it first`)
      if ((await storedSandboxes.read(sandbox)) === null) return
      await msb.remove(vmPaths(home, sandbox).name)
      await storedSandboxes.delete(sandbox)
    },
    async openChannel(run) {
      const record = await records.read(run)
      const phase = record === null ? null : await observeVm(context, record, false)
      if (record === null || phase?.phase !== 'running') throw new Error(`run ${run} is not running`)
      return await connectAgent(vmPaths(home, record.sandbox_id).agentSocket)
    },
    watch: (onChange) => watch.subscribe(onChange),
    async close() {
      await watch.close()
      await starts.close()
      await captures.close()
    },
  }
}

async function openContext(input: MicrosandboxDriverInput): Promise<VmContext> {
  const home = join(input.dir, 'home')
  assertHomeShortEnough(home)
  await mkdir(home, { recursive: true, mode: 0o700 })
  const msb = makeMsbCli(input.installation, home)
  const { dir, clock } = input
  const [records, storedSandboxes, vmImages, bootId] = await Promise.all([
    openVmRunRecords(dir),
    openStoredSandboxes(dir),
    openVmImages({ dir, uidShift: input.settings.uidShift, msb, clock }),
    readBootId(),
  ])
  return { ...input, home, msb, records, storedSandboxes, vmImages, bootId, captures: makeOutputCaptures(input) }
}
