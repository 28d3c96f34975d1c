import assert from 'node:assert/strict'
import { test } from 'node:test'
import { judgeSecrets, prepareSecrets } from '../../../../src/worker/egress/placeholders/host-secrets.ts'
import { testSecret } from '../../../support/intercept.ts'

test('a pattern is compared with the names of an address once, however many secrets have it', () => {
  const patterns = ['*.a.test', '*.test'].map((value) => ({ type: 'wildcard', value }) as const)
  const secrets = Array.from({ length: 256 }, (_, n) =>
    testSecret({ placeholder: `$${String(n)}`, allowed_hosts: patterns }),
  )
  let compared = 0
  const tiedNames = Object.defineProperty(['other'], 0, {
    get() {
      compared += 1
      return 'other'
    },
  })
  const { allowed } = judgeSecrets(prepareSecrets(secrets), { host: 'a.test', tiedNames, isVerified: true })
  assert.deepEqual([allowed.length, compared], [0, patterns.length])
})

test('a wildcard and a name are tied by their own', () => {
  const allowedFor = (tied: string) => {
    const secrets = [
      testSecret({ placeholder: '1', allowed_hosts: [{ type: 'wildcard', value: '*.b.test' }] }),
      testSecret({ placeholder: '2', allowed_hosts: [{ type: 'exact', value: 'a.b.test' }] }),
    ]
    const { allowed } = judgeSecrets(prepareSecrets(secrets), { host: 'a.b.test', tiedNames: [tied], isVerified: true })
    return allowed.map(({ placeholder }) => placeholder)
  }
  assert.deepEqual(allowedFor('a.b.test'), ['1', '2'])
  assert.deepEqual(allowedFor('c.b.test'), ['1'])
  assert.deepEqual(allowedFor('b.example'), [])
})
