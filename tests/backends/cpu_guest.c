/* Runs generated code of another architecture, under an emulator: links units as they come and lets
   threads walk a table of steps, on memory that the host shares. Commands come on stdin as words,
   every answer is a line of numbers. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef void (*entry)(int64_t state, int64_t thread, int64_t threads);

struct helper {
  entry run;
  int64_t state, thread, threads;
};

static void *help(void *given) {
  struct helper *h = given;
  h->run(h->state, h->thread, h->threads);
  return NULL;
}

static void answer(void *found) {
  printf("%lld\n", (long long)(intptr_t)found);
  fflush(stdout);
}

int main(int count, char **words) {
  if (count != 3) return 2;
  int file = open(words[1], O_RDWR);
  answer(mmap(NULL, atoll(words[2]), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  void *used[] = {sched_yield, pthread_mutex_lock, pthread_mutex_unlock, pthread_cond_wait,
                  pthread_cond_broadcast};
  for (int i = 0; i < 5; i++) answer(used[i]);

  char kind[8], path[4096], name[256];
  long long lead, helps, stop, state;
  int threads;
  while (scanf("%7s", kind) == 1) {
    if (!strcmp(kind, "find") && scanf("%4095s %255s", path, name) == 2) {
      void *unit = dlopen(path, RTLD_NOW);
      if (!unit) fprintf(stderr, "%s\n", dlerror());
      answer(unit ? dlsym(unit, name) : NULL);
    } else if (!strcmp(kind, "run") &&
               scanf("%lld %lld %lld %lld %d", &lead, &helps, &stop, &state, &threads) == 5) {
      pthread_t *started = calloc(threads, sizeof *started);
      struct helper *given = calloc(threads, sizeof *given);
      for (int i = 1; i < threads; i++) {
        given[i] = (struct helper){(entry)(intptr_t)helps, state, i, threads};
        if (pthread_create(&started[i], NULL, help, &given[i])) return 3;
      }
      ((entry)(intptr_t)lead)(state, 0, threads);
      ((entry)(intptr_t)stop)(state, 0, threads);
      for (int i = 1; i < threads; i++) pthread_join(started[i], NULL);
      free(started);
      free(given);
      answer(NULL);
    } else {
      return 4;
    }
  }
  return 0;
}
