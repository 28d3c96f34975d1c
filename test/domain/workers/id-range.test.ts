import assert from 'node:assert/strict'
import { test } from 'node:test'
import { describeOverlaps, parseAccounts, parseSubordinateIds } from '../../../src/domain/workers/id-range.ts'

const SUBUID = 'alice:100000:65536\n# comment\n1000:2000000:65536\nbroken:x:y\nempty:5:0\n'
const PASSWD = 'root:x:0:0:root:/root:/bin/sh\nldap:x:2000100:100::/:/bin/sh\n\n'

test('the owners of ids of a range are named with their ids, and nobody else', () => {
  const owners = [...parseSubordinateIds(SUBUID, '/etc/subuid'), ...parseAccounts(PASSWD, '/etc/passwd')]
  assert.deepEqual(describeOverlaps({ first: 2_000_000, last: 3_000_000 }, owners), [
    '1000 in /etc/subuid (2000000-2065535)',
    'ldap in /etc/passwd (2000100)',
  ])
})

test('ranges that only touch do not overlap', () => {
  const owners = parseSubordinateIds(SUBUID, '/etc/subuid')
  assert.deepEqual(describeOverlaps({ first: 165_536, last: 1_999_999 }, owners), [])
  assert.equal(describeOverlaps({ first: 165_535, last: 2_000_000 }, owners).length, 2)
})
