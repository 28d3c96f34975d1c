import { join } from 'node:path'
import { newRunRecord } from '../shared/run-records.ts'
import type { RunOperations } from '../shared/run-supervisor.ts'
import { openCgroupMeter } from './cgroups/cgroup-meter.ts'
import { cgroupParentOf } from './cgroups/open-cgroups.ts'
import type { OciContext } from './context.ts'
import type { PoolFiller } from '../shared/pool-filler.ts'
import { rootfsPaths } from './rootfs/root-mounts.ts'
import { confirmEnd } from './run/confirm-end.ts'
import { releaseRun } from './run/release.ts'
import type { RunActivity } from '../shared/run-activity.ts'
import { observeRun } from './run/run-phase.ts'
import { containerIdOf, type OciRunRecord } from './run/run-records.ts'
import { startRun } from './run/start.ts'
import { stopProcesses } from './run/stop-processes.ts'
import { startFromWarm } from './warm/start-from-warm.ts'
import type { WarmSandboxes } from './warm/warm-sandboxes.ts'

type RunServices = {
  readonly activity: RunActivity
  readonly poolFiller: PoolFiller
  readonly warm: WarmSandboxes
}

/** Makes the functions by which the supervisor starts, observes and ends the runs of this driver. */
export function makeRunOperations(context: OciContext, services: RunServices): RunOperations<OciRunRecord> {
  const { captures, memoryKills, users, bootId } = context
  const { activity, poolFiller, warm } = services
  return {
    async newRecord(desired) {
      const { spec } = desired
      const taken = warm.take(desired)
      if (taken !== null)
        return { ...newRunRecord(desired, bootId), spec, image: null, ids: taken.ids, container_id: taken.id }
      if (users.freeCount === 0 || context.networks.use().free === 0) await warm.removeAll()
      const hasVolumes = spec.mounts.some(({ type }) => type === 'named' || type === 'bind')
      const { range_first, uid_shift } = await users.assign(desired.run_id, { hasVolumes })
      return { ...newRunRecord(desired, bootId), spec, image: null, ids: { range_first, uid_shift } }
    },
    async start(desired, record, attempt) {
      const taken = warm.takenFor(desired.run_id)
      try {
        await warm.during(async () => {
          if (taken === null) await startRun(context, desired, { record, ...attempt })
          else await startFromWarm(context, desired, { record, warm: taken, ...attempt })
        })
      } finally {
        users.closeNamespaces(desired.run_id)
        poolFiller.fillLater() // a start that failed may have taken a disk too
      }
    },
    async observe(record, isBeingStarted) {
      const phase = await confirmEnd(context, record, await observeRun(context, record, isBeingStarted))
      if (phase.phase === 'ended') {
        await context.networks.unpublish(containerIdOf(record))
        await captures.finish(record) // read the last output before the end is reported
      }
      return phase
    },
    isIdle({ run_id, spec }) {
      const { idle_timeout_secs } = spec.lifecycle
      if (idle_timeout_secs === null) return false
      activity.track(run_id, idle_timeout_secs)
      return activity.isIdle(run_id)
    },
    memoryKillsOf: (record) => memoryKills.reportedOf(record.run_id),
    stopProcesses: (record, graceMs) => stopProcesses(context, record, graceMs),
    readLastOutput: (record) => captures.finish(record),
    release: (record) => releaseRun(context, record),
    openMeter: (record) =>
      openCgroupMeter({
        cgroup: join(cgroupParentOf(context.key), containerIdOf(record)),
        diskFolder: rootfsPaths(context.mountDir, containerIdOf(record)).disk,
        initPid: record.started?.init?.pid ?? null,
      }),
    resumeOutput(record) {
      captures.begin({ ...record, shim: record.started?.shim ?? null })
      memoryKills.adopt(record)
    },
    forget(run) {
      captures.forget(run)
      activity.forget(run)
      memoryKills.forget(run)
    },
  }
}
