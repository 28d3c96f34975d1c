import type { SyncRequest } from '../../src/contract/worker-protocol.ts'

/** What a worker without volumes says of them in a sync. */
export const NO_STORAGE: Pick<SyncRequest, 'storage' | 'volumes' | 'known_volumes_version'> = {
  storage: { is_shared: false, enforces_caps: false, how: 'a worker of a test' },
  volumes: null,
  known_volumes_version: null,
}
