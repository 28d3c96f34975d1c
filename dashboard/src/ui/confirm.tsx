import { signal } from '@preact/signals'
import { Dialog } from './dialog.tsx'

type Question = {
  readonly title: string
  readonly text: string
  readonly action: string
  readonly answer: (isConfirmed: boolean) => void
}
const question = signal<Question | null>(null)

/** Asks before something that has no way back. Resolves with whether the person confirmed. */
export function confirm(asked: Omit<Question, 'answer'>): Promise<boolean> {
  return new Promise((resolve) => {
    question.value = { ...asked, answer: resolve }
  })
}

export function Confirmation() {
  const asked = question.value
  if (asked === null) return null
  const answer = (isConfirmed: boolean): void => {
    question.value = null
    asked.answer(isConfirmed)
  }
  return (
    <Dialog title={asked.title} onClose={() => answer(false)}>
      <p>{asked.text}</p>
      <footer>
        <button type="button" class="button" onClick={() => answer(false)}>
          Cancel
        </button>
        <button type="button" class="button danger" onClick={() => answer(true)}>
          {asked.action}
        </button>
      </footer>
    </Dialog>
  )
}
