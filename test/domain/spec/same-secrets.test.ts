import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import { hasSameSecrets, isSameSecret } from '../../../src/domain/spec/same-secrets.ts'
import type { HostPattern, Secret } from '../../../src/domain/spec/secrets.ts'

const host: fc.Arbitrary<HostPattern> = fc.oneof(
  fc.constant({ type: 'any' } as const),
  fc.record({ type: fc.constantFrom('exact', 'wildcard'), value: fc.constantFrom('a', 'b') }),
)
const secret: fc.Arbitrary<Secret> = fc.record({
  env_var: fc.constantFrom('KEY', 'OTHER'),
  placeholder: fc.constant('placeholder'),
  allowed_hosts: fc.array(host, { maxLength: 2 }),
  substitution: fc.record({
    headers: fc.boolean(),
    basic_auth: fc.constant(true),
    header_fields: fc.constantFrom(null, ['x']),
    query: fc.constant(false),
    body: fc.constant(false),
  }),
  passthrough_hosts: fc.array(host, { maxLength: 1 }),
  violation_action: fc.constantFrom(null, { type: 'block' } as const),
  require_tls_identity: fc.constant(true),
})
/** Without the objects that have no prototype. */
const secrets = fc.array(secret, { maxLength: 2 }).map((some) => structuredClone(some))

test('secrets are the same exactly if all of their parts are', () => {
  fc.assert(
    fc.property(secrets, secrets, (some, others) => {
      assert.equal(hasSameSecrets(some, others), isDeepStrictEqual(some, others))
      assert.ok(hasSameSecrets(some, structuredClone(some)))
      assert.equal(isSameSecret(some[0], others[0]), isDeepStrictEqual(some[0], others[0]))
    }),
    { numRuns: 2_000 },
  )
})
