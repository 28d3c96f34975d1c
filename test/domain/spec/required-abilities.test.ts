import assert from 'node:assert/strict'
import { test } from 'node:test'
import { requiredAbilities } from '../../../src/domain/spec/required-abilities.ts'
import type { Mount } from '../../../src/domain/spec/spec.ts'
import { bind, named, tmpfs } from '../../support/mounts.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../support/spec.ts'

const asked = (mounts: readonly Mount[]): readonly string[] =>
  requiredAbilities({ ...DEFAULT_SPEC_FOR_TESTS, mounts })
    .filter(({ ability }) => ability !== 'network_off')
    .map(({ ability, field }) => `${ability}: ${field}`)

test('a mount needs only the ability of its kind, unless one of its options needs another', () => {
  assert.deepEqual(asked([named('v', '/a'), bind('x', '/b'), tmpfs('/c')]), [
    'tmpfs: mounts[2]',
    'named_mounts: mounts[0]',
    'bind_mounts: mounts[1]',
  ])
  const relaxed = { stat_virtualization: 'relaxed', host_permissions: 'mirror' } as const
  assert.deepEqual(asked([{ ...named('v', '/a', { readonly: true, nosuid: true }), ...relaxed }]), [
    'named_mounts: mounts[0]',
  ])
})

test('a quota of a folder, and host owners in a mount, need abilities that are named with their field', () => {
  assert.deepEqual(asked([{ ...bind('x', '/b'), quota_mib: 5 }]), [
    'bind_mounts: mounts[0]',
    'bind_quota: mounts[0].quota_mib',
  ])
  assert.deepEqual(asked([{ ...named('v', '/a'), stat_virtualization: 'off' }]), [
    'named_mounts: mounts[0]',
    'raw_stat: mounts[0].stat_virtualization',
  ])
})
