import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { cidr, contains, formatCidr, subtractAll } from '../../../src/domain/cidr.ts'
import { deniedAddresses, parseRange } from '../../../src/domain/network/operator-denials.ts'

const block = fc
  .tuple(fc.constantFrom('10.0.0.0', '10.0.0.37', '10.0.0.129', '10.0.1.0', 'fd00::', 'fd00::42'), fc.nat(10))
  .map(([address, shorter]) => cidr(`${address}/${String((address.includes(':') ? 128 : 32) - shorter)}`))
const address = fc.oneof(
  fc.nat(1023).map((at) => cidr(`10.0.${String(at >> 8)}.${String(at & 255)}`)),
  fc.nat(1023).map((at) => cidr(`fd00::${at.toString(16)}`)),
)

test('what is left of blocks without holes is exactly the addresses of the blocks that are in no hole', () => {
  fc.assert(
    fc.property(fc.array(block, { maxLength: 3 }), fc.array(block, { maxLength: 3 }), address, (blocks, holes, one) => {
      const expected = blocks.some((b) => contains(b, one)) && !holes.some((hole) => contains(hole, one))
      const left = subtractAll(blocks, holes)
      assert.equal(
        left.some((b) => contains(b, one)),
        expected,
      )
      assert.deepEqual(left.map(formatCidr).map(cidr), left, 'a block as text is the same block')
    }),
    { numRuns: 2_000 },
  )
})

test("a group that the operator opens stays apart from the other groups, and a word means the worker's ranges", () => {
  const words = (word: string): readonly string[] => (word === 'worker' ? ['192.168.7.0/24'] : [])
  const denies = (allow: readonly string[], text: string): boolean =>
    deniedAddresses({ deny: ['metadata', 'link_local', 'worker'], allow }, words).some((b) => contains(b, cidr(text)))
  assert.deepEqual(
    ['169.254.169.254', '169.254.1.1', '192.168.7.9', '192.168.8.9'].map((text) => denies([], text)),
    [true, true, true, false],
  )
  assert.deepEqual([denies(['link_local'], '169.254.169.254'), denies(['link_local'], '169.254.1.1')], [true, false])
  assert.deepEqual([denies(['metadata'], '169.254.169.254'), denies(['metadata'], 'fd00:ec2::254')], [false, false])
  assert.deepEqual([denies(['192.168.7.9'], '192.168.7.9'), denies(['192.168.7.9'], '192.168.7.8')], [false, true])
})

test('a range is a block or a group, and never the gateway or a word of the setting', () => {
  assert.deepEqual(['10.0.0.0/8', 'FD00::/8', 'private'].map(parseRange), ['10.0.0.0/8', 'fd00::/8', 'private'])
  assert.deepEqual(['host', 'loopback', 'worker', '', '10.0.0.0/33'].map(parseRange), [null, null, null, null, null])
})
