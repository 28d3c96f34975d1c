import assert from 'node:assert/strict'
import { test } from 'node:test'
import { CreateSandboxInput } from '../../src/contract/sandboxes/spec-input.ts'
import { normalizeSpec } from '../../src/domain/spec/normalize-spec.ts'
import { projectSpec } from '../../src/domain/spec/project-spec.ts'
import { requiredAbilities } from '../../src/domain/spec/required-abilities.ts'
import type { SandboxSpec } from '../../src/domain/spec/spec.ts'
import { makeSchemaCompiler } from '../../src/http/requests/schemas/schema-compiler.ts'
import { understoodBodies } from '../support/captured-outcomes.ts'
import { capturedBodies, publishedSchema } from '../support/contract.ts'

const parse = makeSchemaCompiler({ acceptsEmptyMembers: true })(CreateSandboxInput, 'body')

function specOf(body: unknown): SandboxSpec {
  const result = normalizeSpec(parse(body))
  assert.ok('normalized' in result, 'refusal' in result ? JSON.stringify(result.refusal) : '')
  return result.normalized.spec
}

const understood = understoodBodies()

test('every recorded create body of the client 0.6.18 fits our schema and passes the rules for specs', () => {
  const bodies = capturedBodies().filter(({ name }) => !name.startsWith('v0.7.11/'))
  assert.ok(bodies.length > 70, `only ${String(bodies.length)} bodies`)
  for (const { name, body } of bodies) if (name !== UNREADABLE_SECRET) assert.doesNotThrow(() => specOf(body), name)
})

/** The body whose secret has its value in a variable of the client's machine. */
const UNREADABLE_SECRET = 'cli-secret-unset'

test('a secret whose value stays on the machine of the client is refused by its field', () => {
  const body = capturedBodies().find(({ name }) => name === UNREADABLE_SECRET)?.body
  const result = normalizeSpec(parse(body))
  assert.ok('refusal' in result)
  assert.equal(result.refusal.field, 'network.secrets.entries[0].value')
  assert.match(result.refusal.seen ?? '', /environment variable of the client's machine/)
})

test('an empty member that a later client adds anywhere changes no specification', () => {
  for (const { name, body } of understood)
    for (const empty of [null, false, '', [], {}])
      assert.deepEqual(specOf(addMember(body, empty)), specOf(body), `${name} with ${JSON.stringify(empty)}`)
})

/** The objects whose keys are names, or of which the only key selects the variant. */
const KEYED = new Set(['labels', 'scripts', 'destination'])

/** A copy of a body with one more member in each object of a fixed shape. */
function addMember(value: unknown, member: unknown): unknown {
  if (Array.isArray(value)) return value.map((item: unknown) => addMember(item, member))
  if (typeof value !== 'object' || value === null) return value
  const entries = Object.entries(value).map(([key, held]) => [key, KEYED.has(key) ? held : addMember(held, member)])
  return { ...Object.fromEntries(entries), of_a_later_client: member }
}

test('every ability that a recorded body needs is found, with the field that asks for it', () => {
  const needs = new Map(understood.map(({ name, body }) => [name, requiredAbilities(specOf(body))]))
  const asked = (name: string): string[] => (needs.get(name) ?? []).map(({ ability, field }) => `${ability} ${field}`)
  assert.deepEqual(asked('sdk-minimal'), [])
  assert.deepEqual(asked('cli-run'), [])
  assert.deepEqual(asked('sdk-net-policy-dest-domain'), [
    'network_policy network.policy',
    'network_domains network.policy.rules[0].destination',
  ])
  assert.deepEqual(asked('sdk-secret-env'), ['network_policy network.policy', 'secrets network.secrets.entries[0]'])
  assert.deepEqual(asked('sdk-mount-named'), ['named_mounts mounts[0]'])
  assert.deepEqual(asked('cli-mount-dir'), ['bind_mounts mounts[0]'])
  assert.deepEqual(asked('cli-disk'), ['disk_images mounts[0]'])
  assert.deepEqual(asked('cli-init'), ['init_handoff init'])
  assert.deepEqual(asked('sdk-net-disabled'), ['network_off network.enabled'])
})

test('the projection of every recorded body fits the reply schema of the published API document', () => {
  const fits = publishedSchema('/components/schemas/SandboxSpecResponse')
  for (const { name, body } of understood) {
    assert.ok(fits(JSON.parse(JSON.stringify(projectSpec(specOf(body))))), `${name}: ${JSON.stringify(fits.errors)}`)
  }
})

test('no secret value of a recorded body is left in the specification that would be stored', () => {
  for (const { name, body } of understood) {
    const spec = specOf(body)
    assert.ok(!JSON.stringify(spec).includes('s3cr3t'), name)
    const values = JSON.stringify(body).match(/"value":"(?:v|dummy-value)"/g) ?? []
    for (const value of values) assert.ok(!JSON.stringify(spec.network).includes(value), name)
  }
})

test('bodies that the next version of the public client spells differently give the same specification', () => {
  const bodies = new Map(understood.map(({ name, body }) => [name, body]))
  assert.deepEqual(specOf(bodies.get('next-client-0.7.2/sdk-minimal')), specOf(bodies.get('sdk-minimal')))
})
