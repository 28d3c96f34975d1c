/** The turns of the event loop during `work`. */
export async function countTurns(work: () => Promise<unknown>): Promise<number> {
  let turns = 0
  let immediate: NodeJS.Immediate
  const count = (): void => {
    turns += 1
    immediate = setImmediate(count)
  }
  immediate = setImmediate(count)
  await work()
  clearImmediate(immediate)
  return turns
}
