import type { RunVolume, DesiredRun } from '../../src/contract/workers/worker-protocol.ts'
import { asId, type OrgId, type RunId, type SandboxId, type VolumeId } from '../../src/domain/ids.ts'
import type { SandboxSpec } from '../../src/domain/spec/spec.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { makeUuids } from '../../src/lib/uuid.ts'
import { DEFAULT_SPEC_FOR_TESTS } from './spec.ts'

/** A desired run of a new sandbox, or of the given one. */
export function makeDesiredRun(spec: Partial<SandboxSpec> = {}, sandbox?: SandboxId): DesiredRun {
  const uuids = makeUuids(systemClock, systemRandom)
  return {
    run_id: asId<RunId>(uuids.next()),
    sandbox_id: sandbox ?? asId<SandboxId>(uuids.next()),
    org_id: asId<OrgId>('org'),
    name: 'brave-otter',
    slug: 'brave-otter',
    org: 'acme',
    desired_status: 'running',
    grace_ms: 2000,
    spec: { ...DEFAULT_SPEC_FOR_TESTS, image: 'local/box', ...spec },
    volumes: [runVolume(null)],
    default_disk_max_mib: null,
    network_ranges: { deny: [], allow: [] },
    registry_auth: null,
  }
}

/** A volume without caps, with `name` as its name and identifier; null is the default volume. */
export function runVolume(name: string | null): RunVolume {
  return {
    org_id: asId<OrgId>('org'),
    volume_id: asId<VolumeId>(name ?? 'host'),
    kind: name === null ? 'host' : 'managed',
    name,
    capacity_bytes: null,
    org_capacity_bytes: null,
  }
}
