import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseConnect, parseFields, parseHead } from '../../../../src/worker/egress/intercept/request-head.ts'
import { RequestRefused } from '../../../../src/worker/egress/request-refused.ts'
import { costOfFourfold } from '../../../support/processor-time.ts'

test('spaces and tabs around a value are no part of it, and all inside are', () => {
  assert.deepEqual(parseFields(['A:', 'B: \t', 'C:x', 'D:\t x \t y \t ']), [
    { name: 'A', value: '' },
    { name: 'B', value: '' },
    { name: 'C', value: 'x' },
    { name: 'D', value: 'x \t y' },
  ])
  for (const line of ['A', ' A: x', 'A : x', ': x', 'A: x\ny', 'A: \0', 'A: x\r'])
    assert.throws(() => parseFields([line]), RequestRefused, JSON.stringify(line))
})

test('the time to read a head grows with its length alone, whatever is in it', () => {
  const fields: Readonly<Record<string, (size: number) => string>> = {
    'spaces inside a value': (size) => `A:x${' '.repeat(40 * size)}b`,
    'spaces before a line feed': (size) => `A:${' '.repeat(size)}\n${' '.repeat(size)}b`,
    'pairs of a space and a tab': (size) => `A:x${' \t'.repeat(20 * size)}b`,
    'spaces alone': (size) => `A:${' '.repeat(40 * size)}`,
  }
  for (const [name, field] of Object.entries(fields))
    for (const parse of [
      (line: string) => parseFields([line]),
      (line: string) => parseHead(Buffer.from(`GET / HTTP/1.1\r\nHost: a\r\n${line}`)),
      (line: string) => parseConnect(Buffer.from(`CONNECT a:443 HTTP/1.1\r\n${line}\r\n\r\n`)),
    ]) {
      const cost = costOfFourfold(400, (size) => {
        try {
          parse(field(size))
        } catch (error) {
          assert.ok(error instanceof RequestRefused)
        }
      })
      assert.ok(cost < 8, `${name}: four times the length takes ${cost.toFixed(1)} times as long`)
    }
})
