import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeReplacement } from '../../../../src/worker/egress/intercept/substitute.ts'
import { testSecret } from '../../../support/intercept.ts'
import { costOfFourfold } from '../../../support/processor-time.ts'

test('placeholders are replaced however the body is split, and a begin inside a whole one holds nothing back', () => {
  const secrets = [testSecret({ placeholder: 'abab', value: '1' }), testSecret({ placeholder: 'b$', value: '2' })]
  const text = 'xabab$ab$abab'
  for (let at = 0; at <= text.length; at++) {
    const { push, end } = makeReplacement(secrets)
    const replaced = [push(Buffer.from(text.slice(0, at))), push(Buffer.from(text.slice(at))), end()]
    assert.equal(Buffer.concat(replaced).toString(), 'x1$a21', String(at))
  }
  const { push } = makeReplacement(secrets)
  assert.equal(push(Buffer.from('xabab')).toString(), 'x1')
})

test('the time to find where a placeholder may begin grows with the length of placeholders alone', () => {
  const cost = costOfFourfold(256, (size) => {
    const absent = Array.from({ length: 64 }, (_, n) => testSecret({ placeholder: `${String(n)}${'x'.repeat(size)}` }))
    const { push } = makeReplacement([...absent, testSecret({ placeholder: 'a'.repeat(size) })])
    push(Buffer.alloc(4 * size, 'a'))
  })
  assert.ok(cost < 8, `placeholders of four times the length take ${cost.toFixed(1)} times as long`)
})
