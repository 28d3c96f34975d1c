/** A process that runs one attack until its input ends, then prints how much it sent. */
import { once } from 'node:events'
import { constants, setPriority } from 'node:os'
import { ATTACKS, startAttack, type AttackTarget } from '../../test/support/attacks.ts'

const [what = '', target = ''] = process.argv.slice(2)
const attack = ATTACKS.find((one) => one.what === what)
if (attack === undefined) throw new Error(`there is no attack '${what}'`)
// An attacker's processor is another machine's. Here it takes of the two cores only what is left.
setPriority(constants.priority.PRIORITY_LOW)
const attacking = startAttack(attack, JSON.parse(target) as AttackTarget) // hostile.ts wrote it
process.stdin.resume()
await once(process.stdin, 'end')
process.stdout.write(JSON.stringify(await attacking.stop()))
process.exit()
