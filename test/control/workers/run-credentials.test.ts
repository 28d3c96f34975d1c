import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { mayNeedSpec } from '../../../src/control/workers/run-credentials.ts'
import { asId, type OrgId, type RunId, type SandboxId } from '../../../src/domain/ids.ts'
import { normalizeSpec } from '../../../src/domain/spec/normalize-spec.ts'
import { requiredAbilities } from '../../../src/domain/spec/required-abilities.ts'
import { usesVolumes } from '../../../src/domain/spec/spec-volumes.ts'
import type { SandboxSpec } from '../../../src/domain/spec/spec.ts'
import { interceptionOf } from '../../../src/domain/spec/tls-interception.ts'
import type { RunAssignment } from '../../../src/store/sandboxes/runs.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'
import { specInputs } from '../../support/spec-inputs.ts'

function runOf(spec: SandboxSpec): RunAssignment {
  return {
    run_id: asId<RunId>('run'),
    sandbox_id: asId<SandboxId>('sandbox'),
    org_id: asId<OrgId>('org'),
    name: 'box',
    slug: 'box',
    org: 'org',
    status: 'starting',
    version: '1',
    spec_json: JSON.stringify(spec),
    abilities: requiredAbilities(spec).map(({ ability }) => ability),
    registry: { mode: 'auto' },
    registry_sealed: null,
    secrets_sealed: null,
    tls_key_sealed: null,
    opened_at: new Date('2026-11-30T00:00:00Z'),
    secrets_version: 0,
    run_secrets_sealed: null,
    default_disk_max_mib: null,
    max_running: null,
    max_vcpus_per_sandbox: null,
    max_memory_mib_per_sandbox: null,
    has_credentials: false,
    network_allow: [],
  }
}

test('each specification that uses volumes, secrets or interception is looked at', () => {
  let looked = 0
  fc.assert(
    fc.property(specInputs, (input) => {
      const result = normalizeSpec(input)
      if ('refusal' in result) return
      const { spec } = result.normalized
      const isNeeded = usesVolumes(spec) || spec.network.secrets.length > 0 || interceptionOf(spec.network) !== null
      if (isNeeded) assert.ok(mayNeedSpec(runOf(spec)))
      looked += isNeeded ? 1 : 0
    }),
    { numRuns: 500 },
  )
  assert.ok(looked > 50, String(looked))
})

test('that of a run with anything sealed, with new secrets, or with credentials of its organization is looked at, and a plain one is not', () => {
  const plain = runOf(PLAIN_SPEC)
  assert.equal(mayNeedSpec(plain), false)
  const sealed = Buffer.from('sealed')
  const others: readonly Partial<RunAssignment>[] = [
    { registry_sealed: sealed },
    { secrets_sealed: sealed },
    { run_secrets_sealed: sealed },
    { tls_key_sealed: sealed },
    { secrets_version: 1 },
    { has_credentials: true },
  ]
  for (const other of others) assert.equal(mayNeedSpec({ ...plain, ...other }), true, Object.keys(other).join())
})
