import type { WantedRun } from '../../src/contract/worker-protocol.ts'
import { asId, type OrgId, type RunId, type SandboxId } from '../../src/domain/ids.ts'
import type { SandboxSpec } from '../../src/domain/spec.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { makeUuids } from '../../src/lib/uuid.ts'
import { DEFAULT_SPEC_FOR_TESTS } from './spec.ts'

/** A wish for a new run of a new sandbox. */
export function wantedRun(spec: Partial<SandboxSpec> = {}, sandbox?: SandboxId): WantedRun {
  const uuids = makeUuids(systemClock, systemRandom)
  return {
    run_id: asId<RunId>(uuids.next()),
    sandbox_id: sandbox ?? asId<SandboxId>(uuids.next()),
    org_id: asId<OrgId>('org'),
    slug: 'brave-otter',
    desired: 'running',
    grace_ms: 2000,
    spec: { ...DEFAULT_SPEC_FOR_TESTS, image: 'local/box', ...spec },
    registry_auth: null,
  }
}
