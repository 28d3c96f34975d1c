// Freezes the file system at a path, says so, and does nothing more until it is killed.
import { freezeMount } from '../../src/cli/backup/frozen-mount.ts'

await freezeMount(process.argv[2] ?? '', 60)
process.stdout.write('frozen\n')
setInterval(() => undefined, 1_000)
