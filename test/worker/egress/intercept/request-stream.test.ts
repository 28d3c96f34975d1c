import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { RunSecret } from '../../../../src/domain/spec/secrets.ts'
import { makeBodyBudgets } from '../../../../src/worker/egress/intercept/body-budget.ts'
import { judgeSecrets, prepareSecrets } from '../../../../src/worker/egress/placeholders/host-secrets.ts'
import { makeRequestStream, type RequestStream } from '../../../../src/worker/egress/intercept/request-stream.ts'
import { testSecret } from '../../../support/intercept.ts'

const MIB = 1024 * 1024

function streamFor(secrets: readonly RunSecret[], host = 'api.test'): RequestStream {
  const prepared = prepareSecrets(secrets)
  const judged = judgeSecrets(prepared, { host, tiedNames: [host], isVerified: true })
  const budget = makeBodyBudgets({ capacity: 64 * MIB, idleLimitMs: 60_000 })('')
  return makeRequestStream({ authority: host, secretsFor: () => judged, budget, isOpaque: false })
}

const bytes = (text: string): Buffer => Buffer.from(text, 'latin1')

test('values that would take the memory of the process are refused, in a head and in a body', () => {
  const long = testSecret({ placeholder: 'a', value: 'v'.repeat(65_536) })
  const many = 'a'.repeat(32)
  const head = 'POST / HTTP/1.1\r\nHost: api.test\r\n'
  for (const request of [
    `GET /?${many} HTTP/1.1\r\nHost: api.test\r\n\r\n`,
    `${head}x: ${many}\r\n\r\n`,
    `${head}${'x: a\r\n'.repeat(32)}\r\n`,
    `${head}Transfer-Encoding: chunked\r\n\r\n20\r\n${many}\r\n0\r\n\r\n`,
    `${head}Content-Length: 32\r\n\r\n${many}`,
  ])
    assert.throws(() => [...streamFor([long]).push(bytes(request))], { message: 'values that are too long together' })
})

test('a body of a known length is changed as it arrives, and is sent as a whole', () => {
  const stream = streamFor([testSecret(), testSecret({ placeholder: '$MSB_KEY_2', value: '2', env_var: 'K2' })])
  const body = 'a $MSB_KEY b $MSB_KEY_2 c $MSB_KE'
  const head = `POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: ${String(body.length)}\r\n\r\n`
  const text = `${head}${body}GET / HTTP/1.1\r\nHost: api.test\r\n\r\n`
  const output = Array.from(text, (one) => [...stream.push(bytes(one))]).flat(2)
  const changed = 'a the-real-value b 2 c $MSB_KE'
  const [first, second, next] = output.map(String)
  assert.equal(first, `POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: ${String(changed.length)}\r\n\r\n`)
  assert.equal(second, changed)
  assert.equal(next, 'GET / HTTP/1.1\r\nHost: api.test\r\n\r\n')
})

test('a placeholder that must not leave is found in a body of a known length before all of it has arrived', () => {
  const elsewhere = testSecret({
    placeholder: '$OTHER',
    env_var: 'OTHER',
    allowed_hosts: [{ type: 'exact', value: 'x' }],
  })
  const stream = streamFor([testSecret(), elsewhere])
  assert.deepEqual(
    [...stream.push(bytes(`POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: ${String(16 * MIB)}\r\n\r\n`))].flat(),
    [],
  )
  assert.throws(() => [...stream.push(bytes('$OTHER'))], { message: 'a placeholder for another host' })
})

test('of the requests in a piece, one is judged at a time', () => {
  let judged = 0
  const { secrets, index } = prepareSecrets([testSecret()])
  const budget = makeBodyBudgets({ capacity: MIB, idleLimitMs: 60_000 })('')
  const secretsFor = () => {
    judged += 1
    return { allowed: secrets, forbidden: [], tolerated: [], index }
  }
  const { push } = makeRequestStream({ authority: null, secretsFor, budget, isOpaque: false })
  const counts = Array.from(push(bytes('GET / HTTP/1.1\r\nHost: api.test\r\n\r\n'.repeat(3))), () => judged)
  assert.deepEqual(counts, [1, 2, 3])
})
