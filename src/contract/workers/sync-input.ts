import { Type } from 'typebox'
import { ABILITIES } from '../../domain/spec/abilities.ts'
import { START_FAILURES } from '../../domain/sandboxes/run.ts'
import { int32, int64, oneOf, stringMap, Uuid, input } from '../common.ts'
import { SEEN_PHASES } from './worker-protocol.ts'

const Outcome = Type.Union([
  input({ kind: oneOf(['exited']), code: Type.Integer() }),
  input({ kind: oneOf(['signalled']), signal: Type.String() }),
  input({ kind: oneOf(['out_of_memory', 'stopped']) }),
  input({ kind: oneOf(['start_failed']), reason: oneOf(START_FAILURES), message: Type.String() }),
  input({ kind: oneOf(['lost']), message: Type.String() }),
])

/** The body of `POST /worker/v1/sync`, checked as strictly as a client's: a worker may be of another version. */
export const SyncInput = input({
  protocol: int32(),
  worker_id: Uuid,
  life: Uuid,
  seq: int64(),
  known_version: Type.Union([Type.String(), Type.Null()]),
  capacity: input({ vcpus: int32(), memory_mib: int32(), disk_mib: int64() }),
  driver: input({
    name: Type.String(),
    isolation: Type.String(),
    abilities: Type.Array(oneOf(ABILITIES)),
    images: Type.Array(Type.String()),
  }),
  seen: Type.Array(
    input({
      run_id: Uuid,
      sandbox_id: Uuid,
      phase: oneOf(SEEN_PHASES),
      outcome: Type.Optional(Outcome),
      is_idle_expired: Type.Optional(Type.Boolean()),
      facts: Type.Optional(stringMap()),
    }),
  ),
  stored: Type.Array(Uuid),
  dialled: Type.Array(Type.String()),
  storage: input({ is_shared: Type.Boolean(), enforces_caps: Type.Boolean(), how: Type.String() }),
  volumes: Type.Union([Type.Array(input({ org_id: Uuid, volume_id: Uuid, used_bytes: int64() })), Type.Null()]),
  known_volumes_version: Type.Union([Type.String(), Type.Null()]),
})
