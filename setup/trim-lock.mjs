// Run `node setup/trim-lock.mjs` after `npm install`. A registry may lack packages for other platforms. npm then leaves them
// out of package-lock.json, or writes them without a hash, and `npm ci` refuses the file. This script removes such packages
// and their names in the packages that would use them. Every package that is left has an integrity hash.
import { readFileSync, writeFileSync } from 'node:fs'

const file = new URL('../package-lock.json', import.meta.url)
const lock = JSON.parse(readFileSync(file, 'utf8'))
const packages = Object.fromEntries(
  Object.entries(lock.packages).filter(([path, entry]) => path === '' || entry.integrity !== undefined),
)
const isLocked = (name) => Object.keys(packages).some((path) => path.endsWith(`node_modules/${name}`))
const removed = new Set()
for (const entry of Object.values(packages)) {
  for (const name of Object.keys(entry.optionalDependencies ?? {})) {
    if (isLocked(name)) continue
    delete entry.optionalDependencies[name]
    removed.add(name)
  }
}
writeFileSync(file, `${JSON.stringify({ ...lock, packages }, null, 2)}\n`)
console.log(`package-lock.json: ${removed.size} packages removed that have no hash`)
