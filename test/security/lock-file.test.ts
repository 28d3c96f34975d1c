import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { attack } from '../support/security-attack.ts'

type Lock = { readonly packages: Readonly<Record<string, { readonly integrity?: string; readonly resolved?: string }>> }

attack(
  'replaces a package on the way from a registry',
  { target: 'control-plane', attacker: 'a package registry or whoever answers for it', finding: 14 },
  () => {
    const path = join(import.meta.dirname, '../../package-lock.json')
    const lock: Lock = JSON.parse(readFileSync(path, 'utf8'))
    const packages = Object.entries(lock.packages).filter(([name]) => name !== '')
    const unchecked = packages
      .filter(([, { integrity }]) => integrity?.startsWith('sha512-') !== true)
      .map(([name]) => name)
    assert.deepEqual(unchecked, [], 'packages without a SHA-512 in package-lock.json; run node setup/trim-lock.mjs')
    return Promise.resolve({
      tries: packages.length,
      outcome: `each of ${String(packages.length)} locked packages has a SHA-512, which npm ci checks`,
    })
  },
)
