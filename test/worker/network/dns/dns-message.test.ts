import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import {
  answersQuery,
  isRebinding,
  readQuery,
  emptyReply,
  withMessageId,
} from '../../../../src/worker/network/dns/dns-message.ts'

function query(name: string, type = 1): Buffer {
  const labels = name.split('.').flatMap((label) => [Buffer.from([label.length]), Buffer.from(label)])
  return Buffer.concat([Buffer.from('123401000001000000000000', 'hex'), ...labels, Buffer.from([0, 0, type, 0, 1])])
}

function answer(name: string, type: number, ...addressesHex: readonly string[]): Buffer {
  const message = query(name, type)
  message.writeUInt16BE(0x8180, 2)
  message.writeUInt16BE(addressesHex.length, 6)
  const records = addressesHex.map((hex) => {
    const fixed = Buffer.from('c00c000000010000000a0000', 'hex')
    fixed.writeUInt16BE(type, 2)
    fixed.writeUInt16BE(hex.length / 2, 10)
    return Buffer.concat([fixed, Buffer.from(hex, 'hex')])
  })
  return Buffer.concat([message, ...records])
}

test('a public name with any special address among its answers is rebinding, in IPv4, IPv6 and mapped form', () => {
  const special = ['0a000001', '7f000001', 'a9fea9fe', 'c0a80101', '64400001', '00000000']
  for (const hex of special) assert.equal(isRebinding(answer('evil.example.com', 1, '01010101', hex)), true, hex)
  const special6 = ['1', 'fd00', 'fe80', 'ffff0a000001'].map((end, index) =>
    index === 1 || index === 2 ? end.padEnd(32, '0') : end.padStart(32, '0'),
  )
  for (const hex of special6) assert.equal(isRebinding(answer('evil.example.com', 28, hex)), true, hex)
  assert.equal(isRebinding(answer('good.example.com', 1, '01010101', '08080808')), false)
  assert.equal(isRebinding(answer('good.example.com', 28, '26064700000000000000000000001111')), false)
})

test('names of private use may have special addresses', () => {
  for (const name of ['db.internal', 'printer.local', 'nas.home.arpa', 'localhost']) {
    assert.equal(isRebinding(answer(name, 1, '0a000001')), false, name)
  }
  assert.equal(isRebinding(answer('internal.example.com', 1, '0a000001')), true)
})

test('an answer cut short in the middle of a record is not trusted', () => {
  const whole = answer('good.example.com', 1, '01010101')
  assert.equal(isRebinding(whole.subarray(0, whole.length - 2)), true)
})

test('an answer is accepted only with the id and question of its query', () => {
  const asked = query('a.example.com')
  assert.equal(answersQuery(answer('a.example.com', 1, '01010101'), asked), true)
  assert.equal(answersQuery(answer('A.Example.COM', 1, '01010101'), asked), true)
  assert.equal(answersQuery(withMessageId(answer('a.example.com', 1, '01010101'), 7), asked), false)
  assert.equal(answersQuery(answer('b.example.com', 1, '01010101'), asked), false)
  assert.equal(answersQuery(answer('a.example.com', 28, '01010101'), asked), false)
  assert.equal(answersQuery(asked, asked), false)
})

test('a question with a name of more than 255 bytes is refused', () => {
  const long = `${'a.'.repeat(126)}b`
  assert.equal(readQuery(query(long))?.name, long)
  assert.equal(readQuery(query(`a${long}`)), null)
})

test('an error reply repeats the id and question, and has the code', () => {
  const reply = emptyReply(query('a.example.com'), 5)
  assert.equal(reply.toString('hex', 0, 12), '123481850001000000000000')
  assert.deepEqual(reply.subarray(12), query('a.example.com').subarray(12))
})

test('no bytes from a sandbox or a resolver make the parser throw', () => {
  fc.assert(
    fc.property(fc.uint8Array({ minLength: 12, maxLength: 80 }), (bytes) => {
      const message = Buffer.from(bytes)
      readQuery(message)
      isRebinding(message)
      answersQuery(message, query('a.example.com'))
      assert.ok(emptyReply(message, 1).length >= 12)
    }),
    { numRuns: 2_000 },
  )
})
