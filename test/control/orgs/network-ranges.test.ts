import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { SETTINGS } from '../../../src/config.ts'
import { allowNetworkRange, disallowNetworkRange, listNetworkRanges } from '../../../src/control/orgs/network-ranges.ts'
import { requireAllowedNetwork } from '../../../src/control/sandboxes/requirements/require-network.ts'
import { OPERATOR_ACTOR } from '../../../src/domain/orgs/caller.ts'
import { Problem } from '../../../src/domain/problem.ts'
import type { Destination } from '../../../src/domain/spec/spec.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { DNS_RULE, networkWith } from '../../support/networks.ts'
import { attack } from '../../support/security-attack.ts'

// The operator's denials, as the control plane checks them before it admits a sandbox.

const DATABASE = '10.9.9.9'
let control: TestControl
before(async () => {
  control = await makeTestControl({ networkDeny: [...SETTINGS.networkDeny.fallback.split(','), DATABASE] })
})
after(() => control.close())

/** The refusal of a policy with this rule, as text, or null if it is admitted. */
async function refusalOf(destination: Destination): Promise<string | null> {
  const { rules } = networkWith([{ destination: { group: 'public' } }, { destination }]).policy ?? { rules: [] }
  const network = networkWith([DNS_RULE, ...rules])
  try {
    await requireAllowedNetwork(control.deps, control.caller, network)
    return null
  } catch (error) {
    if (!(error instanceof Problem)) throw error
    assert.equal(error.code, 'invalid_sandbox_config')
    return error.message
  }
}

const DENIED: readonly Destination[] = [
  { group: 'metadata' },
  { group: 'link_local' },
  { cidr: '169.254.169.254' },
  { cidr: '169.254.0.0/16' },
  { cidr: 'fd00:ec2::254/128' },
  { cidr: DATABASE },
]

attack(
  'asks for a rule that allows only what the operator denies',
  { target: 'network', attacker: 'a tenant with a key', finding: 2 },
  async () => {
    for (const destination of DENIED) {
      const refusal = (await refusalOf(destination)) ?? 'admitted'
      assert.ok(refusal.includes('network.policy.rules[2].destination'), refusal)
      assert.ok(refusal.includes(JSON.stringify(destination)), refusal)
      assert.ok(refusal.includes('accepted: a destination that the operator does not deny'), refusal)
    }
    return { tries: DENIED.length, outcome: 'each request was refused with the index of the rule and what it named' }
  },
)

test('a rule that also allows other addresses is admitted', async () => {
  for (const destination of ['any', { group: 'host' }, { group: 'private' }, { cidr: '10.0.0.0/8' }] as const)
    assert.equal(await refusalOf(destination), null)
})

test('the operator opens a range for one organization, and closes it again', async () => {
  const { deps, caller } = control
  const acting = { org_id: caller.org_id, actor: OPERATOR_ACTOR }
  await allowNetworkRange(deps, acting, 'metadata')
  await allowNetworkRange(deps, acting, `${DATABASE}/32`)
  await allowNetworkRange(deps, acting, 'metadata')
  assert.deepEqual(await listNetworkRanges(deps, acting), ['metadata', `${DATABASE}/32`])
  assert.deepEqual([await refusalOf({ group: 'metadata' }), await refusalOf({ cidr: DATABASE })], [null, null])
  assert.notEqual(await refusalOf({ group: 'link_local' }), null)
  await disallowNetworkRange(deps, acting, 'metadata')
  assert.notEqual(await refusalOf({ group: 'metadata' }), null)
  await assert.rejects(disallowNetworkRange(deps, acting, 'metadata'), /range is "metadata"; accepted: 10\.9\.9\.9\/32/)
  for (const range of ['host', 'worker', '10.0.0.0/99', ''])
    await assert.rejects(allowNetworkRange(deps, acting, range), /accepted: an address or CIDR block/)
})
