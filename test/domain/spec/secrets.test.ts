import assert from 'node:assert/strict'
import { test } from 'node:test'
import { normalizeSpec, type NormalizedSpec } from '../../../src/domain/spec/normalize-spec.ts'
import { projectSpec } from '../../../src/domain/spec/project-spec.ts'
import { resolveSecrets, type Secret } from '../../../src/domain/spec/secrets.ts'
import type { SecretInput, SecretsInput } from '../../../src/domain/spec/spec-input.ts'
import type { Refusal } from '../../../src/domain/refusal.ts'

const SECRET: SecretInput = {
  env_var: 'KEY',
  value: 'the-value',
  placeholder: '$KEY',
  allowed_hosts: [{ type: 'exact', value: 'api.example.com' }],
}
const NORMAL: Secret = {
  env_var: 'KEY',
  placeholder: '$KEY',
  allowed_hosts: [{ type: 'exact', value: 'api.example.com' }],
  substitution: { headers: true, basic_auth: true, header_fields: null, query: false, body: false },
  passthrough_hosts: [],
  violation_action: null,
  require_tls_identity: true,
}

function normalized(secrets: SecretsInput): NormalizedSpec {
  const result = normalizeSpec({ image: 'box', network: { secrets } })
  assert.ok('normalized' in result, 'refusal' in result ? JSON.stringify(result.refusal) : '')
  return result.normalized
}

function one(input: Partial<SecretInput>, all: SecretsInput = {}): Secret | undefined {
  return normalized({ ...all, entries: [{ ...SECRET, ...input }] }).spec.network.secrets[0]
}

function refused(entries: readonly SecretInput[], all: SecretsInput = {}): Refusal {
  const result = normalizeSpec({
    image: 'box',
    env: [{ key: 'SET', value: '1' }],
    network: { secrets: { ...all, entries } },
  })
  assert.ok('refusal' in result, JSON.stringify(entries))
  return result.refusal
}

test('both spellings give the same secret, and the value is kept apart from it', () => {
  const earlier = normalized({
    entries: [{ ...SECRET, injection: { query_params: true }, on_violation: { type: 'block' } }],
    on_violation: { type: 'passthrough', hosts: [{ type: 'any' }] },
  })
  const later = normalized({
    entries: [{ ...SECRET, substitution: { query: true }, passthrough_hosts: [], violation_action: { type: 'Block' } }],
    passthrough_hosts: [{ type: 'Any' }],
    violation_action: { type: 'BlockAndLog' },
  })
  assert.deepEqual(earlier, later)
  assert.deepEqual(later.spec.network.secrets, [
    { ...NORMAL, substitution: { ...NORMAL.substitution, query: true }, violation_action: { type: 'block' } },
  ])
  assert.deepEqual(later.spec.network.secret_defaults, {
    passthrough_hosts: [{ type: 'any' }],
    violation_action: { type: 'block_and_log' },
  })
  assert.deepEqual([...later.secretValues], [['KEY', 'the-value']])
  assert.ok(!JSON.stringify(later.spec).includes('the-value'))
})

test('every difference that a client can make is in the secret', () => {
  assert.deepEqual(one({}), NORMAL)
  const { placeholder: _, ...unnamed } = SECRET
  assert.equal(normalized({ entries: [unnamed] }).spec.network.secrets[0]?.placeholder, '$MSB_KEY')
  assert.deepEqual(one({ injection: { headers: false } })?.substitution, {
    ...NORMAL.substitution,
    headers: false,
    basic_auth: true,
  })
  assert.deepEqual(one({ injection: { basic_auth: false } })?.substitution, {
    ...NORMAL.substitution,
    basic_auth: false,
  })
  assert.deepEqual(one({ substitution: { headers: false, body: true } })?.substitution, {
    ...NORMAL.substitution,
    headers: false,
    basic_auth: false,
    body: true,
  })
  assert.deepEqual(one({ substitution: { header_fields: ['Authorization'] } })?.substitution.header_fields, [
    'authorization',
  ])
  assert.equal(one({ require_tls_identity: false })?.require_tls_identity, false)
  assert.deepEqual(
    one({ allowed_hosts: [{ type: 'Wildcard', value: '*.Example.COM.' }, { type: 'any' }] })?.allowed_hosts,
    [{ type: 'wildcard', value: '*.example.com' }, { type: 'any' }],
  )
  const hosts = [{ type: 'exact', value: 'telemetry.example.com' }] as const
  assert.deepEqual(one({ passthrough_hosts: hosts }), { ...NORMAL, passthrough_hosts: hosts })
  assert.deepEqual(one({ on_violation: { type: 'passthrough', hosts } }), {
    ...NORMAL,
    passthrough_hosts: hosts,
    violation_action: { type: 'block_and_log' },
  })
})

test('an invalid secret is refused by its field, and the refusal never repeats the value', () => {
  const value = 'do-not-repeat-me'
  const given = { ...SECRET, value }
  const cases: readonly (readonly [Partial<SecretInput>, string])[] = [
    [{ env_var: '' }, 'env_var'],
    [{ env_var: 'A=B' }, 'env_var'],
    [{ env_var: 'A\0' }, 'env_var'],
    [{ env_var: 'SET' }, 'env_var'],
    [{ placeholder: '' }, 'placeholder'],
    [{ placeholder: 'x'.repeat(1025) }, 'placeholder'],
    [{ placeholder: 'a\r' }, 'placeholder'],
    [{ allowed_hosts: [] }, 'allowed_hosts'],
    [{ allowed_hosts: [{ type: 'exact', value: 'https://a.com' }] }, 'allowed_hosts[0].value'],
    [{ allowed_hosts: [{ type: 'any' }, { type: 'wildcard', value: 'a.com' }] }, 'allowed_hosts[1].value'],
    [{ allowed_hosts: [{ type: 'exact', value: '*.a.com' }] }, 'allowed_hosts[0].value'],
    [{ passthrough_hosts: [{ type: 'exact', value: '' }] }, 'passthrough_hosts[0].value'],
    [
      { on_violation: { type: 'passthrough', hosts: [{ type: 'exact', value: 'a b' }] } },
      'on_violation.hosts[0].value',
    ],
    [{ substitution: { headers: false } }, 'substitution'],
    [{ injection: { headers: false, basic_auth: false } }, 'injection'],
    [{ substitution: { headers: false, body: true, header_fields: ['a'] } }, 'substitution.header_fields'],
    [{ substitution: { header_fields: [] } }, 'substitution.header_fields'],
    [{ substitution: { header_fields: ['x-key', 'a:b'] } }, 'substitution.header_fields[1]'],
    [{ injection: {}, substitution: {} }, 'substitution'],
    [{ on_violation: { type: 'block' }, violation_action: { type: 'block' } }, 'violation_action'],
    [{ on_violation: { type: 'block' }, passthrough_hosts: [] }, 'passthrough_hosts'],
    [{ value: '' }, 'value'],
    [{ value: `${value}\n` }, 'value'],
    [{ value: value.repeat(5_000) }, 'value'],
    [{ value: '', source: { type: 'env' } }, 'value'],
    [{ value: '', source: { type: 'store' } }, 'value'],
    [{ source: { type: 'env' } }, 'source'],
  ]
  for (const [change, field] of cases) {
    const refusal = refused([{ ...given, ...change }])
    assert.equal(refusal.field, `network.secrets.entries[0].${field}`)
    assert.ok(!JSON.stringify(refusal).includes(value))
  }
  assert.equal(refused([given, { ...given, env_var: 'B' }]).field, 'network.secrets.entries[1].placeholder')
  assert.equal(refused([given, { ...given, placeholder: 'b' }]).field, 'network.secrets.entries[1].env_var')
  const both = { on_violation: { type: 'block' }, violation_action: { type: 'block' } } as const
  assert.equal(refused([given], both).field, 'network.secrets.violation_action')
})

test('a value with line breaks is accepted for bodies alone', () => {
  assert.ok(one({ value: 'a\nb', substitution: { headers: false, body: true } }))
})

test('a reply shows a secret as the published API describes it', () => {
  const { spec } = normalized({
    entries: [{ ...SECRET, substitution: { header_fields: ['x-key'] }, violation_action: { type: 'block' } }],
    passthrough_hosts: [{ type: 'any' }],
  })
  assert.deepEqual(projectSpec(spec).network.secrets, [
    {
      env_var: 'KEY',
      placeholder: '$KEY',
      allowed_hosts: SECRET.allowed_hosts,
      injection: { headers: true, basic_auth: true, header_fields: ['x-key'], query_params: false, body: false },
      passthrough_hosts: [],
      on_violation: { type: 'block' },
      require_tls_identity: true,
    },
  ])
  assert.deepEqual(projectSpec(spec).network.secret_defaults?.passthrough_hosts, [{ type: 'any' }])
})

test('a worker gets each secret with its value, and the defaults apply to secrets without an action', () => {
  const own = { ...SECRET, env_var: 'OWN', placeholder: '$OWN', violation_action: { type: 'block' } } as const
  const { spec, secretValues } = normalized({
    entries: [{ ...SECRET, passthrough_hosts: [{ type: 'exact', value: 'mine.example' }] }, own],
    passthrough_hosts: [{ type: 'any' }],
    violation_action: { type: 'block_and_terminate' },
  })
  const resolved = resolveSecrets(spec.network, secretValues) ?? []
  assert.deepEqual(
    resolved.map(({ passthrough_hosts, violation_action, value }) => [passthrough_hosts, violation_action.type, value]),
    [
      [[{ type: 'exact', value: 'mine.example' }, { type: 'any' }], 'block_and_terminate', 'the-value'],
      [[], 'block', 'the-value'],
    ],
  )
  assert.equal(resolveSecrets(spec.network, new Map([['OWN', 'x']])), null, 'a value is missing')
})
