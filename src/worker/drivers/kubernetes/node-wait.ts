import { isUnschedulable, schedulingFailure, type Pod } from './pod.ts'

/** How many different reasons of one start are told. The scheduler's message counts nodes, so it changes with the cluster. */
const TOLD_MAX = 10

/** Returns a function that looks at each state of a Pod, and calls `tell` with each new reason why the scheduler finds no node for it. */
export function makeNodeWait(tell: (text: string) => void): (pod: Pod) => void {
  const told = new Set<string>()
  return (pod) => {
    if (!isUnschedulable(pod)) return
    const reason = schedulingFailure(pod)
    if (reason === null || told.has(reason) || told.size >= TOLD_MAX) return
    told.add(reason)
    tell(`the Pod waits for a node: ${reason}`)
  }
}
