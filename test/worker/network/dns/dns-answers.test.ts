import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { readNamedAddresses } from '../../../../src/worker/network/dns/dns-answers.ts'

const name = (text: string): string =>
  `${text
    .split('.')
    .map((label) => Buffer.from([label.length]).toString('hex') + Buffer.from(label).toString('hex'))
    .join('')}00`
const QUESTION = 'c00c'
const u16 = (n: number): string => n.toString(16).padStart(4, '0')
const record = (owner: string, type: number, ttl: string, data: string): string =>
  `${owner}${u16(type)}0001${ttl}${u16(data.length / 2)}${data}`
const message = (asked: string, ...records: readonly string[]): Buffer =>
  Buffer.from(`12348180${'0001'}${u16(records.length)}00000000${name(asked)}00010001${records.join('')}`, 'hex')

test('the addresses of a name are those that the answer gives it, also through aliases', () => {
  const answer = message(
    'Www.test',
    record(QUESTION, 5, '0000000a', name('cdn.test')),
    record(name('CDN.test'), 1, '00000064', '01020304'),
    record(name('other.test'), 1, '00000064', '09090909'),
    record(QUESTION, 28, '00000064', '00'.repeat(16)),
  )
  assert.deepEqual(readNamedAddresses(answer), [{ address: '1.2.3.4', ttlSecs: 10 }])
  assert.deepEqual(readNamedAddresses(message('a.test', record(QUESTION, 1, 'ffffffff', '01020304'))), [
    { address: '1.2.3.4', ttlSecs: 0 },
  ])
})

test('an invalid answer, a loop of aliases or of pointers has no addresses', () => {
  assert.equal(readNamedAddresses(message('a.test', `${QUESTION}0001`)), null)
  assert.deepEqual(readNamedAddresses(message('a.test', record(QUESTION, 5, '0000000a', QUESTION))), [])
  const loop = message('a.test', record('c018', 1, '0000000a', '01020304'))
  assert.equal(readNamedAddresses(loop) === null || readNamedAddresses(loop)?.length === 0, true)
})

test('a name of more than 255 bytes is refused, because thousands of records may refer to it', () => {
  const nameOf = (bytes: number): string => 'a.'.repeat((bytes - 4) / 2) + 'bb'
  const long = (bytes: number) => message('a', record(QUESTION, 5, '0000000a', name(nameOf(bytes))))
  assert.deepEqual(readNamedAddresses(long(254)), [])
  assert.equal(readNamedAddresses(long(256)), null)
})

test('no bytes make the reader throw or hang', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 80 }), (bytes) => {
      readNamedAddresses(Buffer.from(bytes))
    }),
  )
})
