import {
  WORKER_PROTOCOL_VERSION,
  type SyncAnswer,
  type SyncRequest,
} from '../../src/contract/workers/worker-protocol.ts'
import type { WorkerId } from '../../src/domain/ids.ts'

/** The first sync request of a simulated worker with much capacity, no volumes and no runs. */
export function reportOf(worker_id: WorkerId, changes: Partial<SyncRequest> = {}): SyncRequest {
  return {
    protocol: WORKER_PROTOCOL_VERSION,
    worker_id,
    incarnation: '00000000-0000-7000-8000-000000000001',
    seq: 1,
    known_generation: null,
    known_desired_version: null,
    capacity: { vcpus: 1_000, memory_mib: 1_000_000, disk_mib: 1_000_000 },
    driver: { name: 'test', isolation: 'none', abilities: [], images: [], default_disk_mib: 1 },
    observed_runs: [],
    stored_sandboxes: [],
    dialled_tickets: [],
    storage: { is_shared: false, enforces_caps: false, how: 'a worker of a test' },
    volumes: null,
    known_volumes_version: null,
    ...changes,
  }
}

/** An answer to a sync that has nothing for the worker. */
export const EMPTY_ANSWER: SyncAnswer = {
  generation: null,
  desired_version: '',
  desired_runs: null,
  discard_sandboxes: [],
  streams: [],
  volumes_version: '',
  volumes: null,
  discard_volumes: [],
}
