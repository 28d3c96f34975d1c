import { Type } from 'typebox'
import { ABILITIES } from '../../domain/abilities.ts'
import { ISOLATION_LEVELS, isolationAbility } from '../../domain/isolation.ts'
import { PORT_MAX } from '../../domain/requests/request-bounds.ts'
import { PUBLISH_RANGES_MAX } from '../../domain/workers/publishing.ts'
import { DISK_PRESSURES } from '../../domain/workers/disk-pressure.ts'
import { START_FAILURES } from '../../domain/sandboxes/run.ts'
import { MEASURED_PHASES_MAX, START_PHASE_NAMES } from '../../domain/sandboxes/start-phases.ts'
import { int32, int64, stringEnum, stringMap, Uuid, requestObject } from '../common.ts'
import { RUN_PHASES } from './worker-protocol.ts'

const PublishRange = requestObject({
  address: Type.String(),
  first: int32({ maximum: PORT_MAX }),
  last: int32({ maximum: PORT_MAX }),
})

/** A phase takes at most a day. Beyond that, the worker measured wrongly. */
const PHASE_MAX_MS = 86_400_000

const Outcome = Type.Union([
  requestObject({ kind: stringEnum(['exited']), code: Type.Integer() }),
  requestObject({ kind: stringEnum(['signalled']), signal: Type.String() }),
  requestObject({ kind: stringEnum(['out_of_memory', 'disk_full', 'stopped']) }),
  requestObject({ kind: stringEnum(['start_failed']), reason: stringEnum(START_FAILURES), message: Type.String() }),
  requestObject({ kind: stringEnum(['lost']), message: Type.String() }),
])

const Phase = requestObject({
  phase: stringEnum(START_PHASE_NAMES),
  offset_ms: Type.Number({ minimum: 0, maximum: PHASE_MAX_MS }),
  duration_ms: Type.Number({ minimum: 0, maximum: PHASE_MAX_MS }),
  has_failed: Type.Optional(Type.Literal(true)),
})

/**
 * The schema of `POST /worker/v1/sync`. A worker may run another version of this program, so its body is validated as
 * strictly as a client's.
 */
export const SyncInput = requestObject({
  protocol: int32(),
  worker_id: Uuid,
  incarnation: Uuid,
  seq: int64(),
  known_generation: Type.Union([int64(), Type.Null()]),
  known_desired_version: Type.Union([Type.String(), Type.Null()]),
  capacity: requestObject({ vcpus: int32(), memory_mib: int32(), disk_mib: Type.Union([int64(), Type.Null()]) }),
  disk: Type.Optional(
    requestObject({
      total_mib: int64(),
      free_mib: int64(),
      reserve_mib: int64(),
      pressure: stringEnum(DISK_PRESSURES),
    }),
  ),
  driver: requestObject({
    name: Type.String(),
    isolation: Type.String(),
    abilities: Type.Array(stringEnum([...ABILITIES, ...ISOLATION_LEVELS.map(isolationAbility)])),
    images: Type.Array(Type.String()),
    default_disk_mib: int32(),
    publishes: Type.Optional(Type.Array(PublishRange, { maxItems: PUBLISH_RANGES_MAX })),
    keeps_disks: Type.Optional(Type.Boolean()),
    runs_outlive_worker: Type.Optional(Type.Boolean()),
  }),
  observed_runs: Type.Array(
    requestObject({
      run_id: Uuid,
      sandbox_id: Uuid,
      phase: stringEnum(RUN_PHASES),
      outcome: Type.Optional(Outcome),
      ran_ms: Type.Optional(int64()),
      is_idle_expired: Type.Optional(Type.Boolean()),
      memory_kills: Type.Optional(int32()),
      start_phases: Type.Optional(Type.Array(Phase, { maxItems: MEASURED_PHASES_MAX })),
      start_age_ms: Type.Optional(Type.Number({ minimum: 0 })),
      facts: Type.Optional(stringMap()),
    }),
  ),
  stored_sandboxes: Type.Array(Uuid),
  dialled_tickets: Type.Array(Type.String()),
  storage: requestObject({
    is_shared: Type.Boolean(),
    enforces_caps: Type.Boolean(),
    serves_files: Type.Optional(Type.Boolean()),
    how: Type.String(),
  }),
  volumes: Type.Union([Type.Array(requestObject({ org_id: Uuid, volume_id: Uuid, used_bytes: int64() })), Type.Null()]),
  known_volumes_version: Type.Union([Type.String(), Type.Null()]),
})
