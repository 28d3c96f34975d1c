import assert from 'node:assert/strict'
import { test } from 'node:test'
import { editDistance } from '../../src/domain/edit-distance.ts'

test('the distance counts letters that are inserted, deleted or replaced', () => {
  const distances = [
    ['', '', 0],
    ['abc', '', 3],
    ['', 'abc', 3],
    ['enabled', 'enabled', 0],
    ['enabeld', 'enabled', 2],
    ['labls', 'labels', 1],
    ['max_udp_connections', 'max_connections', 4],
  ] as const
  for (const [from, to, distance] of distances) assert.equal(editDistance(from, to), distance, `${from} ${to}`)
})
